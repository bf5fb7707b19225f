// The server's HTTP interface: requests that fail in one sentence, and the stream of events.

const RETRY_SECONDS = [0.5, 1, 2, 4];

/** A request that did not work; the message is one sentence for the reader. */
export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch {
    throw new RequestError("The server does not answer. Is meta500 serve still running?", 0);
  }
  if (response.ok) return response;
  let message = `The server answered with ${response.status} ${response.statusText}.`;
  try {
    message = (await response.json()).error || message;
  } catch {
    // An answer without JSON comes from elsewhere; its status has to do.
  }
  throw new RequestError(message, response.status);
}

const json = async (path, options) => (await request(path, options)).json();
const run = (id, rest = "") => `/api/runs/${encodeURIComponent(id)}${rest}`;

export const choices = () => json("/api/choices");
export const stop = (id) => json(run(id, "/stop"), { method: "POST" });
export const log = async (id) => (await request(run(id, "/log"))).text();
export const folder = (id) => run(id, "/folder.zip");

export function ranking(metric, target = null) {
  const query = new URLSearchParams(target === null ? { metric } : { metric, target });
  return json(`/api/ranking?${query}`);
}

export function start(setup) {
  const headers = { "Content-Type": "application/json" };
  return json("/api/runs", { method: "POST", headers, body: JSON.stringify(setup) });
}

export function upload(file) {
  const body = new FormData();
  body.append("file", file);
  return json("/api/uploads", { method: "POST", body });
}

/**
 * Follow all runs, and the curves of some, for as long as the page is open.
 *
 * `follow(ids)` says whose curves are wanted. Listeners: `snapshot(data)` for everything, at first and after
 * every interruption; `update(data)` for what is new; `connection(live)` when it is lost and found again.
 * While the page is hidden it listens to nothing: a browser opens few connections to one server.
 */
export class Events {
  constructor(listeners) {
    this.listeners = listeners;
    this.ids = [];
    // Without curves: the server refuses ids that it does not know, which only its list of runs can tell.
    this.bare = false;
    this.source = null;
    this.timer = null;
    this.failures = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    window.addEventListener("pagehide", () => this.close());
    window.addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  follow(ids) {
    this.ids = [...ids];
    this.bare = false;
    this.open();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  open() {
    this.close();
    if (document.hidden) return;
    const query = this.ids.length && !this.bare ? `?ids=${this.ids.map(encodeURIComponent).join(",")}` : "";
    const source = new EventSource(`/api/events${query}`);
    let opened = false;
    this.source = source;
    source.addEventListener("open", () => {
      opened = true;
      this.failures = 0;
      this.listeners.connection(true);
    });
    source.addEventListener("snapshot", (event) => this.listeners.snapshot(JSON.parse(event.data)));
    source.addEventListener("update", (event) => this.listeners.update(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source !== this.source) return;
      this.listeners.connection(false);
      // The browser would wait for its own time, or not try again at all after an answer with an error.
      this.close();
      this.bare = !opened;
      const seconds = RETRY_SECONDS[Math.min(this.failures, RETRY_SECONDS.length - 1)];
      this.failures += 1;
      this.timer = setTimeout(() => this.open(), 1000 * seconds);
    });
  }
}
