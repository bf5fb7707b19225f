// The form: what is to be trained and how, from the choices that the server names.

import * as api from "./api.js";
import { announce, find, make, problem } from "./dom.js";

const KEPT = "meta500 form";

/** What was typed for an option: JSON where it is, else text, as on the command line. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** Fields for options with their defaults; empty ones keep the default. */
function optionFields(container, prefix, options) {
  const fields = Object.entries(options || {}).map(([name, value]) => {
    const id = `${prefix}.${name}`;
    const input = make("input", { id, name: id, type: "text", spellcheck: false });
    input.placeholder = value === null ? "" : shown(value);
    return make("div", { className: "field" }, make("label", { htmlFor: id, textContent: name }), input);
  });
  container.replaceChildren(...fields);
  container.closest("fieldset").hidden = fields.length === 0;
}

/** The options that were filled in. */
function optionValues(container) {
  const filled = [...container.querySelectorAll("input")].filter((input) => input.value.trim() !== "");
  return Object.fromEntries(filled.map((input) => [input.id.split(".").at(-1), parsed(input.value.trim())]));
}

/** Put these choices into a select; a choice that was made before stays if it still exists. */
function fillSelect(select, groups) {
  const before = select.value;
  const option = ({ value, text, title = "" }) => make("option", { value, textContent: text, title });
  const filled = groups.filter((group) => group.choices.length);
  select.replaceChildren(
    ...filled.flatMap(({ title, choices }) => {
      const options = choices.map(option);
      return title ? [make("optgroup", { label: title }, ...options)] : options;
    }),
  );
  if ([...select.options].some((one) => one.value === before)) select.value = before;
}

const named = (entries) => entries.map(({ name, title }) => ({ value: name, text: name, title }));

export class Form {
  /** `started(id)` is called with the id of every run that was started. */
  constructor(started) {
    this.started = started;
    this.uploads = [];
    this.form = find("form");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.form.addEventListener("input", () => this.keep());
    for (const id of ["model", "dataset", "backend", "optimizer"]) {
      find(id).addEventListener("change", () => this.dependents());
    }
  }

  /** Fill in the choices, and what was chosen before the page was loaded again. */
  fill(choices) {
    this.choices = choices;
    const kept = JSON.parse(sessionStorage.getItem(KEPT) || "{}");
    this.uploads = kept.uploads || [];
    this.models();
    fillSelect(find("dataset"), [{ choices: named(choices.datasets) }]);
    fillSelect(find("backend"), [{ choices: named(choices.backends) }]);
    if (choices.limits.threads) find("threads").max = choices.limits.threads;
    const values = { ...choices.defaults, ...kept.values };
    // Optimizers follow from the backend, and options from everything: each is there after the one before.
    for (let k = 0; k < 3; k += 1) {
      this.preset(values);
      this.dependents();
    }
    this.preset(values);
    // Not through form.dataset, which is the field of that name.
    this.form.setAttribute("data-ready", "true");
  }

  models() {
    const uploaded = this.uploads.map(({ id, name }) => ({ value: `upload:${id}`, text: name }));
    fillSelect(find("model"), [
      { title: "Uploaded", choices: uploaded },
      { title: "Included", choices: named(this.choices.models) },
    ]);
  }

  preset(values) {
    for (const [name, value] of Object.entries(values)) {
      const field = this.form.elements.namedItem(name);
      if (!field) continue;
      if (value === null || field.type === "checkbox") continue;
      const text = String(value);
      const possible = field.tagName !== "SELECT" || [...field.options].some((one) => one.value === text);
      if (possible) field.value = text;
    }
  }

  keep() {
    const values = Object.fromEntries(new FormData(this.form));
    sessionStorage.setItem(KEPT, JSON.stringify({ values, uploads: this.uploads }));
  }

  /** What depends on other choices: optimizers of the backend, options of everything. */
  dependents() {
    const backend = find("backend").value;
    const native = this.choices.native[backend] || [];
    fillSelect(find("optimizer"), [
      { title: "Reference", choices: named(this.choices.optimizers) },
      {
        title: `Of the backend ${backend}`,
        choices: native.map(({ name }) => ({ value: `native:${name}`, text: `${name} (${backend})` })),
      },
    ]);
    const entry = (list, name) => list.find((one) => one.name === name);
    const [own, name] = this.optimizer();
    const optimizer = entry(own ? native : this.choices.optimizers, name);
    // The learning rate follows the optimizer until another one is typed.
    const rate = find("learning_rate");
    if (rate.value === rate.dataset.usual) rate.value = optimizer.learning_rate;
    rate.dataset.usual = optimizer.learning_rate;
    optionFields(find("optimizer_options"), "optimizer_options", optimizer.options);
    for (const kind of ["model", "dataset"]) {
      const chosen = entry(this.choices[`${kind}s`], find(kind).value);
      optionFields(find(`${kind}_options`), `${kind}_options`, chosen?.options);
    }
    this.keep();
  }

  /** Whether the optimizer is the backend's own, and its name. */
  optimizer() {
    const { value } = find("optimizer");
    return value.startsWith("native:") ? [true, value.slice("native:".length)] : [false, value];
  }

  /** An uploaded network: chosen at once, and still there when the page is loaded again. */
  add(upload) {
    this.uploads = [upload, ...this.uploads];
    this.models();
    find("model").value = `upload:${upload.id}`;
    this.dependents();
  }

  /** What the fields say, as the server expects it; null if a field is wrong, which is then said. */
  setup() {
    const wrong = [...this.form.querySelectorAll("input[type=number]")].find((one) => !one.validity.valid);
    for (const input of this.form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
    if (wrong) {
      this.refuse(wrong);
      return null;
    }
    const value = (id) => find(id).value;
    const model = value("model");
    const setup = model.startsWith("upload:") ? { upload: model.slice("upload:".length) } : { model };
    Object.assign(setup, { dataset: value("dataset"), backend: value("backend") });
    [setup.native, setup.optimizer] = this.optimizer();
    for (const { id } of this.form.querySelectorAll("input[type=number]")) {
      if (value(id)) setup[id] = Number(value(id));
    }
    if (value("label").trim()) setup.label = value("label").trim();
    for (const id of ["model_options", "dataset_options", "optimizer_options"]) {
      const values = optionValues(find(id));
      if (Object.keys(values).length) setup[id] = values;
    }
    return setup;
  }

  refuse(input) {
    const whole = input.step === "1" ? "a whole number" : "a number";
    const range = input.max ? `from ${input.min} to ${input.max}` : `of at least ${input.min}`;
    const text = `${input.labels[0].textContent}: must be ${whole} ${range}.`;
    problem(find("form-error"), text);
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", "form-error");
    for (let outer = input.closest("details"); outer; outer = null) outer.open = true;
    input.focus();
  }

  async submit() {
    const setup = this.choices ? this.setup() : null;
    if (!setup || this.busy) return;
    this.busy = true;
    find("start").setAttribute("aria-disabled", "true");
    try {
      const { id } = await api.start(setup);
      problem(find("form-error"), "");
      announce("The run has been handed to the server.");
      this.started(id);
    } catch (error) {
      problem(find("form-error"), error.message, true);
    } finally {
      this.busy = false;
      find("start").removeAttribute("aria-disabled");
    }
  }
}
