// The curves of the shown runs: loss and accuracy, over samples and over seconds.

import { find, foreign, make, write } from "./dom.js";
import { darkTheme, style, swatch } from "./selection.js";
import { count, duration, number, percent, toNumber } from "./text.js";

const POINTS = 1500;
const REDRAW_MILLISECONDS = 400;
const PLOTS = [
  { id: "loss-samples", title: "Loss over samples", x: "samples", y: "loss" },
  { id: "loss-seconds", title: "Loss over seconds", x: "seconds", y: "loss" },
  { id: "accuracy-samples", title: "Accuracy over samples", x: "samples", y: "accuracy" },
  { id: "accuracy-seconds", title: "Accuracy over seconds", x: "seconds", y: "accuracy" },
];
// What a plot shows of a run: lines of each step, markers of each test set.
const SERIES = {
  loss: [["loss", "training", "lines"], ["test_loss", "test", "lines+markers"]],
  accuracy: [["accuracy", "test", "lines+markers"]],
};
// The noise of a training loss needs tighter dashes than the lines between its tests.
const TIGHT = { solid: "solid", dash: "9px,3px", dot: "2px,2px", dashdot: "9px,2px,2px,2px" };
const AXIS = { samples: 0, seconds: 1 };

/** Text for plotly, which would take tags and entities in it for formatting and links. */
export function escaped(text) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  return text.replace(/[&<>]/g, (character) => entities[character]);
}

/** At most about so many points: the ends, and of every stretch the smallest, the largest and any NaN. */
export function thin(points, limit = POINTS) {
  if (points.length <= limit) return points;
  const stretch = (2 * points.length) / limit;
  const kept = new Set([0, points.length - 1]);
  for (let begin = 0; begin < points.length; begin += stretch) {
    const first = Math.floor(begin);
    const end = Math.min(Math.floor(begin + stretch), points.length);
    let [low, high] = [first, first];
    for (let k = first; k < end; k += 1) {
      if (Number.isNaN(points[k][2])) kept.add(k);
      if (!(points[low][2] <= points[k][2])) low = k;
      if (!(points[high][2] >= points[k][2])) high = k;
    }
    kept.add(low).add(high);
  }
  return [...kept].sort((a, b) => a - b).map((k) => points[k]);
}

export class Curves {
  /** `selection` says which runs are drawn; `label(id)` is what a run is called. */
  constructor(selection, label) {
    this.selection = selection;
    this.label = label;
    this.data = new Map();
    this.last = new Map(); // the newest point of each series, which a long one may not have kept
    this.timer = null;
    for (const plot of PLOTS) {
      const area = make("div", { id: plot.id, className: "plot", role: "img" });
      area.setAttribute("aria-label", plot.title);
      const gaps = make("p", { id: `${plot.id}-gaps`, className: "hint", hidden: true });
      find("plots").append(make("figure", {}, make("figcaption", { textContent: plot.title }), area, gaps));
    }
    for (const id of ["log-loss", "log-x"]) {
      find(id).checked = sessionStorage.getItem(id) === "1";
      find(id).addEventListener("change", (event) => {
        sessionStorage.setItem(id, event.target.checked ? "1" : "0");
        this.draw();
      });
    }
    darkTheme.addEventListener("change", () => this.draw());
  }

  /** Everything of a run, in place of what was known of it. */
  replace(id, snapshot) {
    this.data.set(id, {});
    this.last.delete(id);
    this.append(id, snapshot);
  }

  /** What is new of a run. */
  append(id, snapshot) {
    if (!this.data.has(id) || snapshot.reset) this.data.set(id, {});
    const known = this.data.get(id);
    for (const [name, points] of Object.entries(snapshot.series || {})) {
      known[name] ??= [];
      for (const point of points) known[name].push(point.map(toNumber));
    }
    const last = Object.entries(snapshot.last || {}).map(([name, point]) => [name, point.map(toNumber)]);
    this.last.set(id, Object.fromEntries(last));
    this.redraw();
  }

  /** Forget the curves of runs that are not shown any more, and draw. */
  select(ids) {
    for (const id of this.data.keys()) {
      if (ids.includes(id)) continue;
      this.data.delete(id);
      this.last.delete(id);
    }
    this.draw();
  }

  redraw() {
    this.timer ??= setTimeout(() => this.draw(), REDRAW_MILLISECONDS);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = null;
    const ids = this.selection.ids();
    find("no-curves").hidden = ids.length > 0;
    find("curves-shown").hidden = ids.length === 0;
    if (!ids.length) return;
    this.legend(ids);
    if (!window.Plotly) {
      find("plots").textContent = "The plots cannot be drawn: /static/plotly.min.js could not be loaded.";
      return;
    }
    for (const plot of PLOTS) {
      const area = find(plot.id);
      const traces = ids.flatMap((id) => this.traces(plot, id));
      window.Plotly.react(area, traces, this.layout(plot), configuration(plot));
      area.setAttribute("aria-label", this.described(plot, ids));
      const gaps = find(`${plot.id}-gaps`);
      write(gaps, this.gaps(plot, ids));
      gaps.hidden = !gaps.textContent;
    }
  }

  legend(ids) {
    const place = (id) => this.selection.place(id);
    const key = JSON.stringify([darkTheme.matches, ids.map((id) => [place(id), this.label(id)])]);
    if (key === this.legendKey) return;
    this.legendKey = key;
    const entries = ids.map((id) => make("li", {}, swatch(place(id)), foreign(this.label(id))));
    find("legend").replaceChildren(...entries);
  }

  traces(plot, id) {
    const look = style(this.selection.place(id));
    const axis = AXIS[plot.x];
    const known = this.data.get(id) || {};
    return SERIES[plot.y].map(([name, what, mode]) => {
      const points = thin(known[name] || []);
      const tested = mode.includes("markers");
      return {
        type: "scatter",
        mode,
        name: escaped(`${this.label(id)}, ${what}`),
        x: points.map((point) => point[axis]),
        y: points.map((point) => (Number.isFinite(point[2]) ? point[2] : null)),
        hovertemplate: `%{y:.4g} at %{x:.5g} ${plot.x}<extra>%{fullData.name}</extra>`,
        hoverlabel: { namelength: 60 },
        line: { color: look.colour, dash: tested ? look.dash : TIGHT[look.dash], width: tested ? 2 : 1.2 },
        opacity: tested ? 1 : 0.75,
        marker: { color: look.colour, symbol: look.marker, size: 7 },
      };
    });
  }

  layout(plot) {
    const computed = getComputedStyle(document.documentElement);
    const [ink, line] = ["--ink", "--line"].map((name) => computed.getPropertyValue(name).trim());
    const axis = (title, logarithmic) => ({
      title: { text: title, standoff: 8 },
      type: logarithmic ? "log" : "linear",
      dtick: logarithmic ? "D2" : null,
      automargin: true,
      gridcolor: line,
      linecolor: ink,
      zeroline: false,
    });
    const logarithmic = plot.y === "loss" && find("log-loss").checked;
    return {
      uirevision: `${logarithmic} ${find("log-x").checked}`,
      font: { color: ink, family: computed.fontFamily, size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 48, r: 12, t: 8, b: 40 },
      showlegend: false,
      xaxis: { ...axis(plot.x, find("log-x").checked), nticks: 6, exponentformat: "SI" },
      yaxis: {
        ...axis(plot.y, logarithmic),
        exponentformat: "power",
        ...(plot.y === "accuracy" ? { tickformat: ".0%" } : {}),
      },
    };
  }

  /** Which values the plot has no place for, in words; "" where it shows all. */
  gaps(plot, ids) {
    const logarithmic = { y: plot.y === "loss" && find("log-loss").checked, x: find("log-x").checked };
    const lost = (id) => {
      const points = SERIES[plot.y].flatMap(([name]) => this.data.get(id)?.[name] || []);
      const [drawn, odd] = [points.filter((p) => Number.isFinite(p[2])), points.filter((p) => !Number.isFinite(p[2]))];
      const hidden = (p) => (logarithmic.y && p[2] <= 0) || (logarithmic.x && !(p[AXIS[plot.x]] > 0));
      const below = drawn.filter(hidden).length;
      const parts = [];
      if (odd.length) parts.push(`${count(odd.length)} not finite (NaN or infinite)`);
      if (below) parts.push(`${count(below)} not above 0, where a logarithmic axis has no place`);
      return parts.length ? [`${this.label(id)}: ${parts.join(", ")}`] : [];
    };
    const words = ids.flatMap(lost);
    return words.length ? `Values that are not drawn. ${words.join("; ")}.` : "";
  }

  /** The plot in words: the last value of every curve. */
  described(plot, ids) {
    const last = (id) => {
      const known = this.data.get(id) || {};
      const parts = SERIES[plot.y].flatMap(([name, what]) => {
        const point = this.last.get(id)?.[name] ?? known[name]?.at(-1);
        if (!point) return [];
        const value = plot.y === "accuracy" ? percent(point[2]) : number(point[2]);
        const where = plot.x === "samples" ? `${count(point[0])} samples` : duration(point[1]);
        return [`${what} ${value} after ${where}`];
      });
      return `${this.label(id)}: ${parts.join(", ") || "nothing yet"}`;
    };
    return `${plot.title}. ${ids.map(last).join("; ")}`;
  }
}

function configuration(plot) {
  return {
    displaylogo: false,
    responsive: true,
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
    toImageButtonOptions: { format: "svg", filename: `meta500-${plot.id}` },
  };
}
