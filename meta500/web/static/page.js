// The live page: puts its parts together and keeps them up to date.

import * as api from "./api.js";
import { Curves } from "./curves.js";
import { find, problem, write } from "./dom.js";
import { Form } from "./form.js";
import { Ranking } from "./ranking.js";
import { ACTIVE, Runs } from "./runs.js";
import { Selection } from "./selection.js";
import { Upload } from "./upload.js";

const SHOWN_AT_FIRST = 4;
const CHOICES_AGAIN_MILLISECONDS = 2000;

const selection = new Selection((ids) => {
  curves.select(ids);
  runs.draw();
  events.follow(ids);
});
const runs = new Runs(selection);
const curves = new Curves(selection, runs.name);
const ranking = new Ranking();
const form = new Form((id) => selection.show(id));
const upload = new Upload((found) => form.add(found));

/** Without a choice of the reader, the runs that are under way are shown, else the newest. */
function showSome(list) {
  if (selection.chosen || !list.length) return;
  const active = list.filter((run) => ACTIVE.has(run.state));
  selection.show(...(active.length ? active : list).slice(0, SHOWN_AT_FIRST).map((run) => run.id));
}

const events = new api.Events({
  snapshot(data) {
    runs.replace(data.runs);
    // Runs that are gone from the server are gone from the plots too.
    const gone = selection.ids().filter((id) => !runs.runs.has(id));
    if (gone.length) selection.hide(...gone);
    else if (events.bare) events.follow(selection.ids());
    for (const [id, snapshot] of Object.entries(data.curves)) curves.replace(id, snapshot);
    showSome(data.runs);
    curves.draw();
    ranking.load();
  },
  update(data) {
    const ended = data.runs.some((run) => ACTIVE.has(runs.runs.get(run.id)?.state) && !ACTIVE.has(run.state));
    runs.update(data.runs);
    for (const [id, snapshot] of Object.entries(data.curves)) curves.append(id, snapshot);
    if (ended) ranking.load();
  },
  connection(live) {
    write(find("connection"), live ? "connected" : "connection lost, trying again");
    find("connection").dataset.live = live;
  },
});

async function loadChoices() {
  try {
    const choices = await api.choices();
    upload.limits(choices.limits.max_upload);
    selection.most = choices.limits.max_curves;
    form.fill(choices);
    ranking.metrics(choices.metrics);
    problem(find("form-error"), "");
  } catch (error) {
    problem(find("form-error"), error.message);
    setTimeout(loadChoices, CHOICES_AGAIN_MILLISECONDS);
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  // The address holds the shown runs, so the link must not change it.
  event.preventDefault();
  find("runs-title").focus();
});
loadChoices();
events.follow(selection.ids());
