// The sources of the data: the stream, polls while the stream is lost, or one file.

import { takeEvents, takeSeries, takeState, takeStep } from "./model.mjs";

const POLL_MS = 2000;
const FILE_POLL_MS = 60000;
const STREAM_RETRY_MS = 10000;
const SILENT_MS = 8000; // A stream that says nothing for so long counts as lost.
const SERIES_MS = 30000; // While polling, the series is read at most this often.
const TIMEOUT_MS = 8000;

async function read(url) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
  try {
    const answer = await fetch(url, { cache: "no-cache", signal: stop.signal });
    if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

// Keep the model up to date from the API. `changed(what)` tells which part of it is new.
export function followNode(model, changed) {
  let stream = null;
  let heardAt = 0;
  let seriesAt = 0;
  let asking = false;

  const take = (what, apply) => {
    apply();
    changed(what);
  };

  async function askState() {
    if (asking) return;
    asking = true;
    try {
      const body = await read("/api/v1/state");
      take("state", () => takeState(model, body, Date.now()));
    } catch {
      // The next poll tries again; the header shows how old the data is.
    } finally {
      asking = false;
    }
  }

  async function askHistory() {
    seriesAt = Date.now();
    const whole = [
      ["/api/v1/series?points=800", "series", (body) => takeSeries(model, body)],
      ["/api/v1/events?limit=200", "events", (body) => takeEvents(model, body.events)],
      ["/api/v1/samples", "samples", (body) => (model.samples = body)],
    ];
    await Promise.allSettled(whole.map(async ([url, what, apply]) => {
      const body = await read(url);
      take(what, () => apply(body));
    }));
  }

  function openStream() {
    if (stream) stream.close();
    stream = new EventSource("/api/v1/stream");
    let gap = heardAt !== 0;
    stream.onopen = () => {
      if (gap) askHistory();
      gap = true;
    };
    const on = (kind, act) =>
      stream.addEventListener(kind, (message) => {
        heardAt = Date.now();
        let body;
        try {
          body = JSON.parse(message.data);
        } catch {
          return;
        }
        act(body);
      });
    on("state", (body) => {
      if (takeState(model, body, Date.now())) changed("state");
      else askState();
    });
    on("step", (body) => take("series", () => takeStep(model, body)));
    on("event", (body) => take("events", () => takeEvents(model, [body])));
  }

  function tick() {
    const lost = Date.now() - heardAt > SILENT_MS || !stream || stream.readyState === EventSource.CLOSED;
    if (!lost) return;
    askState();
    const newest = model.state && model.state.status && model.state.status.outer_step;
    const steps = model.series && model.series.steps ? model.series.steps.step : [];
    const behind = !model.series || (newest && newest > steps[steps.length - 1]);
    if (behind && Date.now() - seriesAt > SERIES_MS) askHistory();
  }

  askState();
  askHistory();
  openStream();
  setInterval(tick, POLL_MS);
  setInterval(() => {
    if (Date.now() - heardAt > SILENT_MS) openStream();
  }, STREAM_RETRY_MS);
}

// Keep the model up to date from one file, which `p2ptrain report` writes.
export function followFile(model, url, changed) {
  async function askFile() {
    try {
      const body = await read(url);
      takeState(model, body.state, Date.now());
      if (body.series) takeSeries(model, body.series);
      takeEvents(model, Array.isArray(body.events) ? body.events : (body.events || {}).events);
      if (body.samples) model.samples = body.samples;
      for (const what of ["state", "series", "events", "samples"]) changed(what);
    } catch {
      changed("state");
    }
  }
  askFile();
  setInterval(askFile, FILE_POLL_MS);
}

export async function readOlderEvents(model, changed) {
  const oldest = model.events.length ? model.events[model.events.length - 1].id : 0;
  const body = await read(`/api/v1/events?before=${oldest}&limit=100`);
  takeEvents(model, body.events);
  changed("events");
  return body.events.length;
}

// The token comes in the fragment, which browsers do not send. It is kept for this tab only.
export function takeToken() {
  const found = /^#token=([\w-]{8,200})$/.exec(location.hash);
  if (found) {
    try {
      sessionStorage.setItem("p2ptrain-token", found[1]);
    } catch {
      // Without storage the token lasts until the page is loaded again.
    }
    history.replaceState(null, "", location.pathname);
    return found[1];
  }
  try {
    return sessionStorage.getItem("p2ptrain-token") || "";
  } catch {
    return "";
  }
}

// Ask the node to do something. Return its answer as one sentence.
export async function act(token, action, body) {
  try {
    const answer = await fetch(`/api/v1/actions/${action}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-P2PTrain-Token": token },
      body: JSON.stringify(body),
    });
    const said = await answer.json().catch(() => ({}));
    return said.done || said.error || `The node answered ${answer.status} and gave no reason.`;
  } catch {
    return "The page's process did not answer. Is your node still running? See: p2ptrain status";
  }
}
