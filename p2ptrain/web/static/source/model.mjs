// The page's copy of the node's data, and how messages change it. It does not know the document.

const RECENT_STEPS = 20;
const EVENTS_MAX = 1000;

export function emptyModel() {
  return {
    state: null,
    serial: null,
    receivedAt: 0, // The page's clock when the newest state arrived, in milliseconds.
    series: null,
    events: [],
    samples: { prompts: [], samples: [] },
    names: new Map(),
    shared: new Set(), // Names that more than one peer has.
  };
}

// A merge patch (RFC 7396) that may also patch single items of an array, by their index.
export function merged(target, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  if (Array.isArray(target)) {
    const items = target.slice();
    for (const [index, change] of Object.entries(patch)) {
      if (/^\d{1,4}$/.test(index) && Number(index) < items.length) items[index] = merged(items[index], change);
    }
    return items;
  }
  const found = target !== null && typeof target === "object" ? { ...target } : {};
  for (const [name, change] of Object.entries(patch)) {
    if (name === "__proto__") continue;
    if (change === null) delete found[name];
    else found[name] = merged(found[name], change);
  }
  return found;
}

// Take a whole state or a patch. Return false if the page has to ask for the whole state.
export function takeState(model, message, nowMs) {
  if (message === null || typeof message !== "object") return false;
  if (message.patch !== undefined) {
    if (model.state === null || message.base !== model.serial) return false;
    model.state = merged(model.state, message.patch);
  } else {
    model.state = message;
  }
  model.serial = message.serial;
  model.receivedAt = nowMs;
  for (const member of membersOf(model)) remember(model, member.peer, member.peer_name);
  const status = model.state.status;
  if (status) remember(model, status.peer, status.peer_name);
  return true;
}

export function takeSeries(model, body) {
  model.series = body;
  for (const each of body.peers || []) remember(model, each.peer, each.name);
  const contributors = body.contributors || {};
  for (const rows of Object.values(contributors)) {
    for (const row of Array.isArray(rows) ? rows : []) remember(model, row.peer, row.name);
  }
}

// Take an outer step that the stream reported. Reports may be late: a step that is already known is
// replaced, and its tokens are not counted again.
export function takeStep(model, message) {
  const series = model.series;
  if (!series || !message || !message.step) return;
  const columns = series.steps || {};
  const steps = columns.step || [];
  const row = message.step;
  const rows = message.peers || [];
  const newest = steps.length ? steps[steps.length - 1] : 0;
  const at = row.step > newest ? steps.length : steps.indexOf(row.step);
  if (at < 0) return;
  for (const name of Object.keys(columns)) columns[name][at] = row[name] === undefined ? null : row[name];
  for (const each of rows) remember(model, each.peer, each.name);
  const first = Math.max(newest, row.step) - RECENT_STEPS;
  series.recent = (series.recent || []).filter((each) => each.step > first && each.step !== row.step).concat(rows);
  if (row.step <= newest) return;
  appendThroughput(series, row, rows);
  for (const each of Object.values(series.contributors || {})) addTokens(each, rows);
}

function appendThroughput(series, row, rows) {
  const throughput = series.throughput;
  if (!throughput || !throughput.step) return;
  const times = series.steps.time;
  const seconds = times.length > 1 ? row.time - times[times.length - 2] : 0;
  const length = throughput.step.push(row.step);
  const tokens = new Map(rows.map((each) => [each.peer, each.tokens]));
  for (const peer of new Set([...Object.keys(throughput.by_peer), ...tokens.keys()])) {
    const values = (throughput.by_peer[peer] = throughput.by_peer[peer] || new Array(length - 1).fill(0));
    values.push(seconds > 0 ? (tokens.get(peer) || 0) / seconds : 0);
  }
}

function addTokens(contributors, rows) {
  if (!Array.isArray(contributors)) return;
  for (const row of rows) {
    if (!row.tokens) continue;
    let found = contributors.find((each) => each.peer === row.peer);
    if (!found) contributors.push((found = { peer: row.peer, name: row.name, tokens: 0, steps: 0, share: 0 }));
    found.tokens += row.tokens;
    found.steps += 1;
  }
  const total = contributors.reduce((sum, each) => sum + each.tokens, 0);
  for (const each of contributors) each.share = total ? each.tokens / total : 0;
  contributors.sort((one, other) => other.tokens - one.tokens);
}

export function takeEvents(model, events) {
  const found = new Map(model.events.map((each) => [each.id, each]));
  for (const each of events || []) found.set(each.id, each);
  model.events = Array.from(found.values()).sort((one, other) => other.id - one.id).slice(0, EVENTS_MAX);
}

function remember(model, peer, name) {
  if (!peer || !name || model.names.get(peer) === name) return;
  model.names.set(peer, name);
  const seen = new Set();
  model.shared = new Set();
  for (const each of model.names.values()) (seen.has(each) ? model.shared : seen).add(each);
}

export function membersOf(model) {
  const status = model.state && model.state.status;
  return status && Array.isArray(status.members) ? status.members : [];
}

export function nameOf(model, peer) {
  const name = model.names.get(peer);
  const id = String(peer || "");
  if (!name) return id ? "…" + id.slice(-6) : "";
  return model.shared.has(name) ? `${name} …${id.slice(-4)}` : name;
}

// Seconds since the node last answered: the age that the server reported, and the time since then.
export function dataAge(model, nowMs) {
  if (!model.state) return null;
  const told = model.state.heard_s_ago;
  const since = Math.max(0, (nowMs - model.receivedAt) / 1000);
  return typeof told === "number" ? told + since : null;
}
