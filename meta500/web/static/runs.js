// The list of runs: state, progress, remaining time, and what can be done with each.

import * as api from "./api.js";
import { announce, find, foreign, make, problem, write } from "./dom.js";
import { darkTheme, swatch } from "./selection.js";
import { count, duration, number, percent, remaining } from "./text.js";

const AT_FIRST = 20;
export const ACTIVE = new Set(["queued", "starting", "running"]);

/** What a run is called: its label, else what it trains with. */
export function runName(run) {
  const { model, backend, optimizer } = run.setup || {};
  return run.label || [model, backend, optimizer].filter(Boolean).join(" · ") || run.id;
}

/** The setup of a run in one line. */
export function setupLine(setup = {}) {
  const rate = setup.learning_rate ?? setup.hyperparameters?.learning_rate;
  const parts = [setup.model, setup.dataset, setup.backend];
  parts.push(setup.optimizer && (setup.native ? `${setup.optimizer} (the backend's own)` : setup.optimizer));
  if (rate !== undefined && rate !== null) parts.push(`learning rate ${rate}`);
  if (setup.batch_size) parts.push(`batches of ${setup.batch_size}`);
  if (setup.epochs) parts.push(setup.epochs === 1 ? "1 epoch" : `${setup.epochs} epochs`);
  if (setup.seed !== undefined && setup.seed !== null) parts.push(`seed ${setup.seed}`);
  return parts.filter(Boolean).join(" · ");
}

/** The state of a run in words. */
export function stateLine(run) {
  if (run.state === "queued") return run.position ? `queued, number ${run.position} in line` : "queued";
  const phase = run.progress?.phase;
  return run.state === "running" && ["training", "testing"].includes(phase) ? phase : run.state;
}

/** What a run has done so far, in words. */
export function progressLine(progress) {
  if (!progress) return "";
  const parts = [];
  if (progress.epochs) parts.push(`epoch ${progress.epoch} of ${progress.epochs}`);
  if (progress.phase === "training" || progress.phase === "testing") {
    const what = progress.phase === "testing" ? "test batch" : "batch";
    parts.push(`${what} ${progress.batch}${progress.batches === null ? "" : ` of ${progress.batches}`}`);
  }
  if (progress.samples_seen) parts.push(`${count(progress.samples_seen)} samples`);
  if (progress.loss !== null && progress.loss !== undefined) parts.push(`loss ${number(progress.loss)}`);
  if (progress.accuracy !== null && progress.accuracy !== undefined) {
    parts.push(`test accuracy ${percent(progress.accuracy)}`);
  }
  if (progress.seconds) parts.push(duration(progress.seconds));
  return parts.join(" · ");
}

export class Runs {
  constructor(selection) {
    this.selection = selection;
    this.runs = new Map();
    this.cards = new Map();
    this.all = false;
    this.stopping = new Set();
    find("more-runs").addEventListener("click", () => {
      this.all = true;
      this.draw();
    });
    darkTheme.addEventListener("change", () => this.draw());
  }

  name = (id) => (this.runs.has(id) ? runName(this.runs.get(id)) : id);

  /** All runs, in place of those known. */
  replace(runs) {
    const known = this.runs;
    this.runs = new Map(runs.map((run) => [run.id, run]));
    for (const run of runs) this.tell(known.get(run.id), run);
    this.draw();
  }

  /** Runs that are new or have changed. */
  update(runs) {
    for (const run of runs) {
      this.tell(this.runs.get(run.id), run);
      this.runs.set(run.id, { ...this.runs.get(run.id), ...run });
    }
    this.draw();
  }

  tell(before, now) {
    if (before && before.state !== now.state) {
      announce(`${runName(now)}: ${stateLine(now)}${now.message ? `, ${now.message}` : ""}`);
    }
    if (!ACTIVE.has(now.state)) this.stopping.delete(now.id);
  }

  draw() {
    const newest = [...this.runs.values()].sort((a, b) => (a.created < b.created ? 1 : -1));
    const shown = this.all ? newest : newest.slice(0, AT_FIRST);
    find("no-runs").hidden = newest.length > 0;
    find("more-runs").hidden = shown.length === newest.length;
    write(find("more-runs"), `Show all ${newest.length} runs`);
    for (const [id, card] of this.cards) {
      if (shown.some((run) => run.id === id)) continue;
      card.item.remove();
      this.cards.delete(id);
    }
    const list = find("run-list");
    shown.forEach((run, k) => {
      if (!this.cards.has(run.id)) this.cards.set(run.id, this.card(run));
      const { item } = this.cards.get(run.id);
      if (list.children[k] !== item) list.insertBefore(item, list.children[k] || null);
      this.fill(run);
    });
  }

  card(run) {
    const button = (text, click) => make("button", { type: "button", textContent: text, on: { click } });
    const parts = {
      mark: make("span", { className: "mark" }),
      name: make("h3", { id: `name-${run.id}`, tabIndex: -1 }),
      state: make("p", { className: "state" }),
      setup: make("p", { className: "setup" }),
      progress: make("progress", { max: 1 }),
      remaining: make("p", { className: "remaining" }),
      figures: make("p", { className: "figures" }),
      message: make("p", { className: "message" }),
      show: button("Show", () => this.toggle(run.id)),
      stop: button("Stop", () => this.stop(run.id)),
      log: button("Log", () => this.log(run.id)),
      folder: make("a", { className: "button", textContent: "Download", href: api.folder(run.id) }),
    };
    parts.folder.setAttribute("download", "");
    const actions = make("div", { className: "actions" }, parts.show, parts.stop, parts.folder, parts.log);
    const head = make("div", { className: "head" }, parts.mark, parts.name, parts.state);
    const bar = make("div", { className: "bar" }, parts.progress, parts.remaining);
    const item = make("li", { className: "run", dataset: { id: run.id } }, head, parts.setup, bar);
    item.append(parts.figures, parts.message, actions);
    item.setAttribute("aria-labelledby", parts.name.id);
    return { item, ...parts };
  }

  fill(run) {
    const card = this.cards.get(run.id);
    const [name, place] = [runName(run), this.selection.place(run.id)];
    const active = ACTIVE.has(run.state);
    const key = `${place} ${darkTheme.matches}`;
    if (card.mark.dataset.key !== key) {
      card.mark.dataset.key = key;
      card.mark.replaceChildren(...(place < 0 ? [] : [swatch(place)]));
    }
    if (card.name.textContent !== name) card.name.replaceChildren(foreign(name));
    card.item.dataset.state = run.state;
    write(card.state, this.stopping.has(run.id) ? "stopping" : stateLine(run));
    write(card.setup, setupLine(run.setup));
    write(card.figures, progressLine(run.progress));
    write(card.message, run.message || "");
    card.message.hidden = !run.message;
    this.bar(card, run, name);
    write(card.show, place < 0 ? "Show" : "Hide");
    const labels = { show: "in the plots:", stop: "", folder: "", log: "of" };
    for (const [part, word] of Object.entries(labels)) {
      card[part].setAttribute("aria-label", [card[part].textContent, word, name].filter(Boolean).join(" "));
    }
    card.folder.hidden = ["queued", "starting"].includes(run.state);
    card.log.hidden = run.state === "queued";
    // Not disabled, which would take the focus away.
    card.stop.setAttribute("aria-disabled", this.stopping.has(run.id));
    if (!active && document.activeElement === card.stop) card.show.focus();
    card.stop.hidden = !active;
  }

  bar(card, run, name) {
    const fraction = run.progress?.done ?? null;
    const known = run.state === "running" && fraction !== null;
    card.progress.hidden = run.state !== "starting" && run.state !== "running";
    card.progress.setAttribute("aria-label", `Progress of ${name}`);
    if (known) {
      card.progress.value = fraction;
      card.progress.textContent = percent(fraction);
    } else card.progress.removeAttribute("value");
    const words = known ? [percent(fraction), remaining(run.progress)].filter(Boolean).join(", ") : "";
    write(card.remaining, words);
  }

  toggle(id) {
    const { selection } = this;
    let text = "";
    if (selection.place(id) >= 0) selection.hide(id);
    else if (!selection.show(id)) text = `At most ${selection.most} runs are shown together; hide one first.`;
    problem(find("runs-error"), text);
    this.draw();
  }

  async stop(id) {
    if (this.stopping.has(id)) return;
    this.stopping.add(id);
    this.fill(this.runs.get(id));
    try {
      await api.stop(id);
      problem(find("runs-error"), "");
    } catch (error) {
      this.stopping.delete(id);
      problem(find("runs-error"), error.message);
      this.draw();
    }
  }

  async log(id) {
    const dialog = find("log");
    find("log-title").replaceChildren("Log of ", foreign(this.name(id)));
    find("log-text").textContent = "";
    dialog.showModal();
    try {
      find("log-text").textContent = (await api.log(id)) || "Nothing has been written yet.";
      find("log-text").scrollTop = find("log-text").scrollHeight;
    } catch (error) {
      find("log-text").textContent = error.message;
    }
  }
}
