// Uploading an ONNX file, by the button or dropped onto the page.

import * as api from "./api.js";
import { announce, find, foreign, make, problem } from "./dom.js";
import { bytes, count } from "./text.js";

const OPERATORS_SHOWN = 12;

export class Upload {
  /** `uploaded(upload)` is called for every file that the server has read and that can be trained. */
  constructor(uploaded) {
    this.uploaded = uploaded;
    this.limit = null;
    const input = find("upload");
    input.addEventListener("change", () => {
      this.send([...input.files]);
      input.value = "";
    });
    for (const event of ["dragenter", "dragover"]) {
      document.addEventListener(event, (found) => this.over(found));
    }
    for (const event of ["dragleave", "drop"]) {
      document.addEventListener(event, (found) => {
        if (event === "drop" || !found.relatedTarget) find("drop").classList.remove("over");
      });
    }
    // A file dropped anywhere is meant for the form; the browser would leave the page and open it.
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      this.send([...event.dataTransfer.files]);
    });
  }

  /** Largest file in bytes, if the server says so. */
  limits(limit) {
    this.limit = limit ?? null;
    const most = this.limit === null ? "" : `; at most ${bytes(limit)}`;
    find("upload-hint").textContent = `Choose it, or drop it here${most}.`;
  }

  over(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    find("drop").classList.add("over");
  }

  async send(files) {
    const error = find("form-error");
    if (!files.length) return;
    if (files.length > 1) {
      problem(error, `${files.length} files were dropped; give one ONNX file at a time.`, true);
      return;
    }
    const [file] = files;
    if (this.limit !== null && file.size > this.limit) {
      problem(error, `The file has ${bytes(file.size)}; at most ${bytes(this.limit)} are taken.`, true);
      return;
    }
    problem(error, "");
    find("upload-state").replaceChildren("Reading ", foreign(file.name), " …");
    try {
      const found = await api.upload(file);
      find("upload-state").replaceChildren(summary(found));
      if (!found.trainable) {
        problem(error, `${found.name} cannot be trained: ${found.problem}`, true);
        return;
      }
      this.uploaded(found);
      announce(`${found.name} has been read and chosen as network.`);
    } catch (failure) {
      find("upload-state").replaceChildren();
      problem(error, failure.message, true);
    }
  }
}

/** What the server found in a file. */
function summary(upload) {
  const values = (found) => Object.entries(found).map((pair) => pair.join(": ")).join(", ");
  const operators = Object.entries(upload.operators).sort((a, b) => b[1] - a[1]);
  const listed = operators.slice(0, OPERATORS_SHOWN).map(([name, times]) => `${times} ${name}`);
  if (operators.length > listed.length) listed.push(`${operators.length - listed.length} others`);
  const rows = [
    ["File", `${upload.name}, ${bytes(upload.bytes)}`],
    ["Inputs", values(upload.inputs)],
    ["Outputs", values(upload.outputs)],
    ["Parameters", count(upload.parameters)],
    ["Operators", listed.join(", ")],
  ];
  return make("dl", {}, ...rows.flatMap(([name, text]) => [
    make("dt", { textContent: name }),
    make("dd", {}, foreign(text)),
  ]));
}
