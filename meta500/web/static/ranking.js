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

// Columns: title, value to sort by, text, and whether it is a number.
const COLUMNS = [
  { id: "rank", title: "Rank", value: (run) => run.rank, text: (run) => String(run.rank ?? "–"), numeric: true },
  { id: "name", title: "Run", value: runName, text: runName },
  { id: "model", title: "Network", value: (run) => run.setup.model, text: (run) => run.setup.model },
  { id: "dataset", title: "Dataset", value: (run) => run.setup.dataset, text: (run) => run.setup.dataset },
  { id: "backend", title: "Backend", value: (run) => run.setup.backend, text: (run) => run.setup.backend },
  { id: "optimizer", title: "Optimizer", value: (run) => run.setup.optimizer, text: (run) => run.setup.optimizer },
  { id: "accuracy", title: "Accuracy", value: (run) => toNumber(run.accuracy), text: (run) => percent(run.accuracy), numeric: true },
  { id: "loss", title: "Test loss", value: (run) => toNumber(run.loss), text: (run) => number(run.loss), numeric: true },
  { id: "seconds", title: "Time", value: (run) => toNumber(run.seconds), text: (run) => duration(run.seconds), numeric: true },
];

/** Order of two values, with numbers that are missing or NaN always last. */
export function order(a, b, descending) {
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  const found = typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
  return descending ? -found : found;
}

export class Ranking {
  constructor(selection) {
    this.selection = selection;
    this.found = null;
    this.sorted = { id: "rank", descending: false };
    find("metric").addEventListener("change", () => {
      this.sorted = { id: "rank", descending: false };
      this.load();
    });
    const heads = COLUMNS.map((column) => {
      const click = () => this.sort(column.id);
      const button = make("button", { type: "button", textContent: column.title, on: { click } });
      const head = make("th", { scope: "col", dataset: { id: column.id } }, button);
      head.classList.toggle("number", Boolean(column.numeric));
      return head;
    });
    find("ranking-table").tHead.append(make("tr", {}, ...heads));
  }

  /** What the server can rank by. */
  metrics(names) {
    const options = names.map((name) => make("option", { value: name, textContent: NAMES[name] || name }));
    find("metric").replaceChildren(...options);
  }

  /** Ask the server for the ranking as it is now. */
  async load() {
    const metric = find("metric").value || "accuracy";
    try {
      const found = await api.ranking(metric);
      if (metric !== (find("metric").value || "accuracy")) return; // another one was chosen in the meantime
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
    for (const head of find("ranking-table").tHead.rows[0].cells) {
      if (head.dataset.id === id) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const cell = (run, one) => {
      const made = make(one.id === "name" ? "th" : "td", {}, foreign(one.text(run) ?? "–"));
      if (one.id === "name") made.scope = "row";
      made.classList.toggle("number", Boolean(one.numeric));
      return made;
    };
    const rows = runs.map((run) => make("tr", { dataset: { id: run.id } }, ...COLUMNS.map((one) => cell(run, one))));
    find("ranking-table").tBodies[0].replaceChildren(...rows);
    find("ranking-scroll").hidden = runs.length === 0;
    write(find("ranking-note"), this.note(runs.length));
  }

  note(finished) {
    const left = this.found.left_out;
    const words = finished ? "" : "No run has finished yet.";
    if (!left) return words;
    return `${words} ${left === 1 ? "One run is" : `${left} runs are`} left out: not finished.`.trim();
  }
}
