// Which runs the plots show, and in which colour and dash: kept in the address, as "#show=a,,b".
// The place in this list is the run's style, so that a run keeps it while others come and go.

const ID = /^[A-Za-z0-9_-]{1,80}$/;
const COLOURS = 6;
// After Okabe and Ito, "Color Universal Design" (2008), told apart with all common kinds of colour blindness:
// the darker colours on white and the paler ones on black, so that each stands out from the paper (3:1).
const LIGHT = ["#0072b2", "#d55e00", "#008a64", "#b04a8a", "#000000", "#8a6500"];
const DARK = ["#56b4e9", "#e69f00", "#2fc79a", "#e6a5cb", "#ffffff", "#f0e442"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const STROKES = { solid: "none", dash: "7 4", dot: "2 4", dashdot: "8 3 2 3" };
const MARKERS = ["circle", "square", "triangle-up", "diamond", "cross", "x", "star"];

export const darkTheme = window.matchMedia("(prefers-color-scheme: dark)");

/** Colour, dash and marker of a place; two places share all three only after dozens of runs. */
export function style(place) {
  const colour = (darkTheme.matches ? DARK : LIGHT)[place % COLOURS];
  return { colour, dash: DASHES[place % DASHES.length], marker: MARKERS[place % MARKERS.length] };
}

/** A short line as the run's curves are drawn, beside its name. */
export function swatch(place) {
  const { colour, dash } = style(place);
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "line");
  const set = (target, attributes) => {
    for (const [name, value] of Object.entries(attributes)) target.setAttribute(name, value);
  };
  set(picture, { width: 30, height: 10, viewBox: "0 0 30 10", "aria-hidden": "true", class: "swatch" });
  set(line, { x1: 1, y1: 5, x2: 29, y2: 5, stroke: colour, "stroke-width": 3 });
  set(line, { "stroke-dasharray": STROKES[dash] });
  picture.append(line);
  return picture;
}

/** The shown runs; `changed(ids)` is called whenever they change, also by a new address. */
export class Selection {
  constructor(changed) {
    this.changed = changed;
    this.places = [];
    this.chosen = false;
    this.most = 16;
    this.read();
    window.addEventListener("hashchange", () => {
      this.read();
      changed(this.ids());
    });
  }

  read() {
    const found = /^#show=(.*)$/.exec(window.location.hash);
    if (!found) return;
    this.chosen = true;
    const ids = found[1].split(",", this.most);
    this.places = ids.map((id, k) => (ID.test(id) && ids.indexOf(id) === k ? id : ""));
  }

  ids() {
    return this.places.filter(Boolean);
  }

  /** The place of a run, -1 if it is not shown. */
  place(id) {
    return this.places.indexOf(id);
  }

  /** Show these runs too; false if that would be more than the server sends curves of. */
  show(...ids) {
    const added = ids.filter((one) => this.place(one) < 0);
    if (this.ids().length + added.length > this.most) return false;
    for (const id of added) {
      const free = this.places.indexOf("");
      this.places[free < 0 ? this.places.length : free] = id;
    }
    this.keep();
    return true;
  }

  hide(...ids) {
    this.places = this.places.map((id) => (ids.includes(id) ? "" : id));
    while (this.places.length && !this.places.at(-1)) this.places.pop();
    this.keep();
  }

  keep() {
    this.chosen = true;
    window.history.replaceState(null, "", `#show=${this.places.join(",")}`);
    this.changed(this.ids());
  }
}
