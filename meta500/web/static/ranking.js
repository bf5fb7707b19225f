// The table of finished runs: ranked by the server, sorted by any column here.

import * as api from "./api.js";
import { find, foreign, make, problem, write } from "./dom.js";
import { runName } from "./runs.js";
import { duration, number, percent, toNumber } from "./text.js";

const NAMES = {
  accuracy: "test accuracy",
  loss: "test loss",
  seconds: "time",
  time_to_accuracy: "time to an accuracy",
};

const name = (run) => runName({ ...run, setup: run });
const words = (id, title) => ({ id, title, value: (run) => run[id], text: (run) => run[id] });
const figure = (id, title, text) => ({
  id,
  title,
  numeric: true,
  value: (run) => toNumber(run[id]),
  text: (run) => text(run[id]),
});

// Columns: title, value to sort by, text, whether it is a number, and the metric that it is for.
const COLUMNS = [
  figure("rank", "Rank", number),
  { id: "name", title: "Run", value: name, text: name },
  words("model", "Network"),
  words("dataset", "Dataset"),
  words("backend", "Backend"),
  { ...words("optimizer", "Optimizer"), text: (run) => run.optimizer + (run.native ? " (native)" : "") },
  figure("accuracy", "Accuracy", percent),
  figure("best_accuracy", "Best accuracy", percent),
  figure("loss", "Test loss", number),
  figure("seconds", "Time", duration),
  figure("epochs", "Epochs", number),
  { ...figure("value", "Time to it", duration), only: "time_to_accuracy" },
];

/** Order of two values, with numbers that are missing or NaN always last. */
export function order(a, b, descending) {
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  const found = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
  return descending ? -found : found;
}

export class Ranking {
  constructor() {
    this.found = null;
    this.sorted = { id: "rank", descending: false };
    for (const id of ["metric", "target"]) {
      find(id).addEventListener("change", () => {
        this.sorted = { id: "rank", descending: false };
        this.load();
      });
    }
    find("ranking-table").tHead.append(make("tr", {}, ...COLUMNS.map((column) => this.head(column))));
  }

  head({ id, title, numeric }) {
    const button = make("button", { type: "button", textContent: title, on: { click: () => this.sort(id) } });
    const made = make("th", { scope: "col", dataset: { id } }, button);
    made.classList.toggle("number", Boolean(numeric));
    return made;
  }

  /** What the server can rank by. */
  metrics(names) {
    const options = names.map((name) => make("option", { value: name, textContent: NAMES[name] || name }));
    find("metric").replaceChildren(...options);
  }

  /** Ask the server for the ranking as it is now. */
  async load() {
    const metric = find("metric").value || "accuracy";
    const timed = metric === "time_to_accuracy";
    find("target-field").hidden = !timed;
    this.asked = (this.asked || 0) + 1;
    const asked = this.asked;
    try {
      const found = await api.ranking(metric, timed ? find("target").value / 100 : null);
      if (asked !== this.asked) return; // something else was asked in the meantime
      this.found = found;
      problem(find("ranking-error"), "");
      this.draw();
    } catch (error) {
      problem(find("ranking-error"), error.message);
    }
  }

  sort(id) {
    this.sorted = { id, descending: this.sorted.id === id && !this.sorted.descending };
    this.draw();
  }

  draw() {
    const { id, descending } = this.sorted;
    const column = COLUMNS.find((one) => one.id === id);
    const runs = [...this.found.runs].sort((a, b) => order(column.value(a), column.value(b), descending));
    const shown = COLUMNS.filter(({ only }) => !only || only === this.found.metric);
    for (const head of find("ranking-table").tHead.rows[0].cells) {
      head.hidden = !shown.some((one) => one.id === head.dataset.id);
      if (head.dataset.id === id) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const cell = (run, one) => {
      const made = make(one.id === "name" ? "th" : "td", {}, foreign(one.text(run) ?? "–"));
      if (one.id === "name") made.scope = "row";
      made.classList.toggle("number", Boolean(one.numeric));
      return made;
    };
    const row = (run) => make("tr", { dataset: { id: run.id } }, ...shown.map((one) => cell(run, one)));
    find("ranking-table").tBodies[0].replaceChildren(...runs.map(row));
    find("ranking-scroll").hidden = runs.length === 0;
    write(find("ranking-note"), this.note(runs.length));
  }

  note(finished) {
    const left = this.found.left_out;
    const words = finished ? "" : "No run has finished yet.";
    if (!left) return words;
    const [who, what] = left === 1 ? ["One run is", "it has"] : [`${left} runs are`, "they have"];
    return `${words} ${who} left out: ${what} not finished, or left no results.`.trim();
  }
}
