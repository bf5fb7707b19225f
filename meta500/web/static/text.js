// Numbers, times and states in words.

const UNITS = [[1e-6, "ns", 1e9], [1e-3, "µs", 1e6], [1, "ms", 1e3]];

/** The server sends what JSON lacks as "NaN", "Infinity" and "-Infinity"; null stays null. */
export const toNumber = (value) => (value === null || value === undefined ? null : Number(value));

/** A number with so many significant digits, "NaN" and "∞" included; "–" where there is none. */
export function number(value, digits = 3) {
  const found = toNumber(value);
  if (found === null) return "–";
  if (Number.isNaN(found)) return "NaN";
  if (!Number.isFinite(found)) return found > 0 ? "∞" : "-∞";
  if (found === 0) return "0";
  const size = Math.abs(found);
  if (size < 1e-3 || size >= 1e6) return found.toExponential(digits - 1);
  return String(Number.isInteger(found) ? found : Number(found.toPrecision(Math.max(digits, 1))));
}

/** A fraction as percentage with one digit behind the point. */
export function percent(value) {
  const found = toNumber(value);
  return found === null || !Number.isFinite(found) ? number(found) : `${(100 * found).toFixed(1)} %`;
}

/** A whole number with its thousands set apart. */
export const count = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** A time in the unit in which it reads best. */
export function duration(value) {
  const seconds = toNumber(value);
  if (seconds === null || !Number.isFinite(seconds)) return number(seconds);
  for (const [limit, unit, factor] of UNITS) {
    if (seconds > 0 && seconds < limit) return `${number(seconds * factor)} ${unit}`;
  }
  if (seconds < 100) return `${number(seconds)} s`;
  const whole = Math.round(seconds);
  const two = (part) => String(part).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** Bytes in the unit in which they read best. */
export function bytes(value) {
  if (value < 1000) return `${value} B`;
  if (value < 1e6) return `${number(value / 1024)} KiB`;
  return value < 1e9 ? `${number(value / 1024 ** 2)} MiB` : `${number(value / 1024 ** 3)} GiB`;
}

/** How long until the end, as far as it is known: nothing, "at least ...", "at most ..." or "about ...". */
export function remaining(progress) {
  const seconds = toNumber(progress.remaining);
  if (seconds === null || !Number.isFinite(seconds)) return "";
  // A score may end the run sooner; then a lower bound says nothing.
  if (progress.may_stop && !progress.remaining_complete) return "";
  const rounded = seconds < 100 ? `${Math.ceil(seconds)} s` : duration(seconds);
  const bound = progress.may_stop ? "at most" : progress.remaining_complete ? "about" : "at least";
  return `${bound} ${rounded} to go`;
}
