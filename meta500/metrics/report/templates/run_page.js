// Tables that sort and filter, figures drawn by plotly when they come into view, and the rows of the page.
// Texts of the page are only ever set as text, never as HTML.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const STEP = 200;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function count(shown, all, what) {
    const total = all.toLocaleString("en") + " " + what + (all === 1 ? "" : "s");
    return shown === all ? total : shown.toLocaleString("en") + " of " + total;
  }

  // ---- order ----

  const collator = new Intl.Collator("en", { numeric: true });

  function compared(a, b) {
    if (a === b) return 0;
    const numbers = (typeof a === "number") + (typeof b === "number");
    if (numbers === 2) return a < b ? -1 : 1;
    // Numbers stand before words.
    return numbers === 1 ? (typeof a === "number" ? -1 : 1) : collator.compare(a, b);
  }

  // What is empty or no number (NaN) stands last in both directions.
  function sorted(items, key, direction) {
    if (direction === "none") return items;
    const sign = direction === "ascending" ? 1 : -1;
    const keyed = items.map((item, place) => [key(item), place, item]);
    const isLast = (value) => value === "" || Number.isNaN(value);
    const last = keyed.filter((entry) => isLast(entry[0]));
    const rest = keyed.filter((entry) => !isLast(entry[0]));
    rest.sort((a, b) => sign * compared(a[0], b[0]) || a[1] - b[1]);
    return [...rest, ...last].map((entry) => entry[2]);
  }

  // Heads become buttons; each press asks for the next order: ascending, descending, as it was.
  function sortable(heads, order) {
    for (const [place, head] of heads.entries()) {
      const button = element("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" };
        const direction = next[head.getAttribute("aria-sort")];
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", direction);
        order(place, direction);
      });
    }
  }

  function filterBox(title, act) {
    const input = element("input", { type: "search", placeholder: "all words must be in a line" });
    const status = element("output", { "aria-live": "polite" });
    const bar = element("div", { class: "filter" }, element("label", {}, "Filter ", input), status);
    input.setAttribute("aria-label", "Filter: " + title);
    input.addEventListener("input", () => act(input.value.toLowerCase().split(/\s+/).filter(Boolean)));
    return { bar, input, status };
  }

  // ---- tables of the page ----

  function cellKey(cell) {
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim();
    return text === "NaN" && cell.classList.contains("number") ? NaN : text;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const lines = [...body.rows];
    let texts = null;
    sortable([...table.tHead.rows[0].cells], (column, direction) => {
      body.append(...sorted(lines, (line) => cellKey(line.cells[column]), direction));
    });
    const filter = filterBox(table.caption.textContent, (words) => {
      texts = texts || lines.map((line) => line.textContent.toLowerCase());
      let shown = 0;
      for (const [place, line] of lines.entries()) {
        line.hidden = !words.every((word) => texts[place].includes(word));
        shown += !line.hidden;
      }
      filter.status.textContent = count(shown, lines.length, "line");
    });
    filter.status.textContent = count(lines.length, lines.length, "line");
    table.closest(".scroll").before(filter.bar);
  }

  // ---- figures ----

  function resolved(value, ink) {
    if (Array.isArray(value)) return value.map((entry) => resolved(entry, ink));
    if (value === "#000000") return ink;
    if (value === null || typeof value !== "object") return value;
    if (Object.keys(value).length === 1 && "array" in value && Number.isInteger(value.array)) {
      return { dtype: "f8", bdata: page.arrays[value.array] };
    }
    return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, resolved(entry, ink)]));
  }

  function draw(figure) {
    const style = getComputedStyle(document.documentElement);
    const [ink, line, paper] = ["--ink", "--line", "--paper"].map((name) => style.getPropertyValue(name).trim());
    const { data, layout } = resolved(page.figures[figure.dataset.name], ink);
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { color: ink, size: 12, family: getComputedStyle(document.body).fontFamily };
    layout.hoverlabel = { bgcolor: paper, bordercolor: ink, font: { color: ink } };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis/.test(name)) Object.assign(layout[name], { gridcolor: line, zerolinecolor: line });
    }
    // On narrow screens each entry of the legend has a line of its own.
    const narrow = figure.clientWidth < 500;
    const legend = data.filter((trace) => trace.showlegend !== false).length;
    if (narrow && legend > 1) layout.height += 19 * legend;
    const config = {
      responsive: true,
      displaylogo: false,
      typesetMath: false,
      toImageButtonOptions: { format: "svg", filename: figure.dataset.name },
    };
    figure.classList.add("drawn");
    return Plotly.react(figure.querySelector(".interactive"), data, layout, config);
  }

  function tools(figure) {
    const place = figure.querySelector(".tools");
    const image = figure.querySelector("img");
    if (page.figures[figure.dataset.name] && window.Plotly) {
      const button = element("button", { type: "button", "aria-pressed": "false" }, "Static figure");
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(figure.classList.toggle("still")));
        // The size of a plot that was hidden while the window changed is an old one.
        if (!figure.classList.contains("still")) Plotly.Plots.resize(figure.querySelector(".interactive"));
      });
      place.append(button);
    }
    const save = element("a", { href: "#", download: figure.dataset.name + ".svg" }, "Save SVG");
    save.addEventListener("click", () => { save.href = image.src; });
    place.append(save);
  }

  function figures() {
    const all = [...document.querySelectorAll("figure[data-name]")];
    all.forEach(tools);
    if (!window.Plotly) return;
    const drawn = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        observer.unobserve(entry.target);
        drawn.add(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "400px" });
    for (const figure of all) if (page.figures[figure.dataset.name]) observer.observe(figure);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
  }

  // ---- rows ----

  function bytes(link) {
    const text = atob(link.href.slice(link.href.indexOf(",") + 1));
    return Uint8Array.from(text, (character) => character.charCodeAt(0));
  }

  function unpacked(link) {
    const stream = new Blob([bytes(link)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Cells of CSV whose cells with commas, quotes or line ends stand in quotes.
  function parsed(text) {
    const lines = [];
    const pattern = /(?:"((?:[^"]|"")*)"|([^,\n]*))(,|\n|$)/g;
    let line = [];
    for (let found; pattern.lastIndex < text.length && (found = pattern.exec(text));) {
      line.push(found[1] === undefined ? found[2] : found[1].replaceAll('""', '"'));
      if (found[3] !== ",") {
        lines.push(line);
        line = [];
      }
    }
    return lines;
  }

  const links = [...document.querySelectorAll("a.file")];
  for (const link of links) {
    link.addEventListener("click", async (event) => {
      if (!window.DecompressionStream) return;
      event.preventDefault();
      const address = URL.createObjectURL(new Blob([await unpacked(link)], { type: "text/csv" }));
      element("a", { href: address, download: link.download.replace(/\.gz$/, "") }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60000);
    });
    link.textContent = link.textContent.replace(/\.gz$/, "");
  }

  async function read() {
    const names = [...document.querySelectorAll(".files .source")].map((entry) => entry.textContent);
    const rows = [];
    let head = [];
    for (const [source, link] of links.entries()) {
      const [first, ...lines] = parsed(await unpacked(link));
      head = first;
      for (const [place, cells] of lines.entries()) rows.push({ source, place, cells: [names[source], ...cells] });
    }
    head = ["run", ...head];
    // Columns without anything in them are left out, and the version of the format is of no interest.
    const used = head.map((name, at) => name !== "schema" && rows.some((row) => row.cells[at] !== ""));
    const columns = head.map((name, at) => at).filter((at) => used[at]);
    for (const row of rows) row.text = row.cells.join(" ").toLowerCase();
    return { head, columns, rows };
  }

  let explorer = null;

  async function explore() {
    const place = document.getElementById("explorer");
    place.textContent = "Reading the rows …";
    const { head, columns, rows } = await read();
    // The rows of each source follow one another.
    const begins = new Map();
    for (const [at, row] of rows.entries()) if (row.place === 0) begins.set(row.source, at);
    const state = { words: [], figure: "", chosen: null, column: -1, direction: "none", most: STEP };
    const body = element("tbody");
    const heads = columns.map((at) => element("th", { scope: "col" }, head[at]));
    const table = element("table", { class: "data" }, element("caption", {}, "Rows"),
      element("thead", {}, element("tr", {}, ...heads)), body);
    const only = element("p", { id: "only-figure" });
    const more = element("button", { type: "button" }, "Show more");
    more.addEventListener("click", () => { state.most += STEP; show(); });

    // Numbers as CSV files of rows have them; words in a column make all of it words.
    const special = new Map([["inf", Infinity], ["-inf", -Infinity], ["nan", NaN]]);
    const number = (cell) => special.has(cell) ? special.get(cell) : Number(cell);

    function keyOf(at) {
      const isNumber = (cell) => cell === "" || cell === "nan" || !Number.isNaN(number(cell));
      if (!rows.every((row) => isNumber(row.cells[at]))) return (row) => row.cells[at];
      return (row) => row.cells[at] === "" ? "" : number(row.cells[at]);
    }

    // Once for all rows of a figure: there may be as many ranges as rows.
    function rowsOf(name) {
      const found = new Set();
      for (const [source, ...ends] of page.rows[name]) {
        for (let at = 0; at < ends.length; at += 2) {
          for (let place = ends[at]; place <= ends[at + 1]; place++) found.add(rows[begins.get(source) + place]);
        }
      }
      return found;
    }

    function show() {
      const found = rows.filter((row) => (!state.chosen || state.chosen.has(row)) &&
        state.words.every((word) => row.text.includes(word)));
      const ordered = state.column < 0 ? found : sorted(found, keyOf(columns[state.column]), state.direction);
      const visible = ordered.slice(0, state.most);
      body.replaceChildren(...visible.map((row) => element("tr", {}, ...columns.map((at) => {
        const cell = element("td", {}, row.cells[at]);
        cell.title = row.cells[at].length > 40 ? row.cells[at].slice(0, 400) : "";
        return cell;
      }))));
      const hidden = ordered.length - visible.length;
      filter.status.textContent = count(ordered.length, rows.length, "row") +
        (hidden > 0 ? ", the first " + visible.length.toLocaleString("en") + " are shown" : "");
      more.hidden = hidden <= 0;
      only.hidden = !state.figure;
    }

    const filter = filterBox("Rows", (words) => { Object.assign(state, { words, most: STEP }); show(); });
    sortable(heads, (column, direction) => { Object.assign(state, { column, direction, most: STEP }); show(); });
    const all = element("button", { type: "button" }, "Show all rows");
    const title = element("span");
    only.append(title, " ", all);
    const choose = (name) => {
      const shown = name && document.getElementById("figure-" + name);
      title.textContent = shown ? "Only the rows of the figure “" + shown.querySelector("h3").textContent + "”." : "";
      Object.assign(state, { figure: name, chosen: name ? rowsOf(name) : null, most: STEP });
      show();
    };
    all.addEventListener("click", () => choose(""));
    const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rows" }, table);
    place.replaceChildren(filter.bar, only, scroll, more);
    return choose;
  }

  function rows(figure) {
    explorer = explorer || explore();
    return explorer.then((choose) => choose(figure));
  }

  if (window.DecompressionStream) {
    const button = element("button", { type: "button" }, "Show the rows as a table");
    button.addEventListener("click", () => rows(""));
    document.getElementById("explorer").append(button);
    for (const link of document.querySelectorAll("a.rows")) {
      link.addEventListener("click", () => { rows(link.dataset.figure); });
    }
  }

  addEventListener("beforeprint", () => {
    for (const entry of document.querySelectorAll("details")) entry.open = true;
  });
  addEventListener("DOMContentLoaded", figures);
})();
