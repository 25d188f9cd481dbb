// Numbers and sentences that the sections show, computed from the model. It does not know the document.

import { clean, count, duration, fixed, known, percent, plural, short } from "./text.mjs";

export function column(series, name) {
  return (series && series.steps && series.steps[name]) || [];
}

export function last(values) {
  for (let at = values.length - 1; at >= 0; at--) if (known(values[at])) return values[at];
  return null;
}

export function quantile(values, fraction) {
  const sorted = values.filter(known).sort((one, other) => one - other);
  if (!sorted.length) return null;
  const place = fraction * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

export function median(values) {
  return quantile(values, 0.5);
}

// Time to the end of the run: the median of the last 20 outer steps, and half the distance between
// their quartiles as the spread. One slow step then does not change the estimate much.
export function timeLeft(series, stepsOfRun) {
  const times = column(series, "time").slice(-21);
  const steps = column(series, "step").slice(-21);
  const newest = last(steps);
  if (times.length < 3 || !known(stepsOfRun) || newest === null || newest >= stepsOfRun) return null;
  const lengths = [];
  for (let at = 1; at < times.length; at++) {
    const passed = steps[at] - steps[at - 1];
    if (passed > 0 && known(times[at]) && known(times[at - 1])) lengths.push((times[at] - times[at - 1]) / passed);
  }
  if (!lengths.length) return null;
  const left = stepsOfRun - newest;
  const spread = (quantile(lengths, 0.75) - quantile(lengths, 0.25)) / 2;
  return { seconds: left * median(lengths), spread: left * spread, stepSeconds: median(lengths) };
}

// The newest held-out loss, and its change over the last 24 hours (or over the whole history).
export function heldOut(series) {
  const values = column(series, "held_out");
  const times = column(series, "time");
  const at = lastIndex(values, values.length - 1);
  if (at < 0) return null;
  let then = at;
  for (let back = at; back >= 0 && times[at] - times[back] <= 86400; back--) if (known(values[back])) then = back;
  return {
    loss: values[at],
    step: column(series, "step")[at],
    change: then === at ? null : values[at] - values[then],
    seconds: times[at] - times[then],
  };
}

function lastIndex(values, from) {
  for (let at = from; at >= 0; at--) if (known(values[at])) return at;
  return -1;
}

export const PHASES = ["starting", "fetching snapshot", "catching up", "standing by", "training", "exchanging", "serving"];

// The state's name in the words of a member's status, without its details: "training (inner 3/9)".
export function stateName(words) {
  return clean(words, 60).split(/[(:]/)[0].trim() || "unknown";
}

export function statesOf(members) {
  const counts = new Map();
  for (const each of members) {
    const name = stateName(each.state);
    counts.set(name, (counts.get(name) || 0) + 1);
  }
  return Array.from(counts).sort((one, other) => other[1] - one[1]);
}

export function lossSentence(series) {
  const losses = column(series, "loss");
  const held = heldOut(series);
  if (!losses.length) return "No outer step has been agreed yet.";
  const first = losses.find(known);
  const [before, now] = [fixed(first, 2), fixed(last(losses), 2)];
  const words = [before === now ? `The training loss has stayed at ${now}` : `The training loss ${last(losses) > first ? "rose" : "fell"} from ${before} to ${now}`];
  words.push(`over ${count(last(column(series, "tokens_total")))} certified tokens`);
  if (held) words.push(`; the held-out loss is ${fixed(held.loss, 3)} at outer step ${held.step}`);
  return words.join(" ").replace(" ;", ";") + ".";
}

// The order of the last exchange, from the words of the status:
// "split, in the order brave-otter, calm-fox; the reason".
export function ringOf(status) {
  const found = /^(.{1,40}?), in the order ([^;]+)(?:; ?([^]*))?$/.exec((status && status.averaging) || "");
  if (!found) return null;
  return { schedule: found[1], names: found[2].split(", ").slice(0, 200), reason: found[3] || "" };
}

// Exchange times of each of the last outer steps: quantiles over peers, bytes, the slowest peer.
export function exchanges(series) {
  const steps = groupedBySteps(series);
  return steps.map(({ step, rows }) => {
    const taking = rows.filter((row) => row.exchange_ms > 0);
    const slowest = taking.reduce((worst, row) => (!worst || row.exchange_ms > worst.exchange_ms ? row : worst), null);
    const times = taking.map((row) => row.exchange_ms / 1000);
    return {
      step,
      p50: quantile(times, 0.5),
      p95: quantile(times, 0.95),
      bytes: rows.reduce((sum, row) => sum + (row.bytes_up || 0), 0),
      slowest,
    };
  });
}

export function groupedBySteps(series) {
  const found = new Map();
  for (const row of (series && series.recent) || []) {
    if (!found.has(row.step)) found.set(row.step, []);
    found.get(row.step).push(row);
  }
  return Array.from(found, ([step, rows]) => ({ step, rows })).sort((one, other) => one.step - other.step);
}

// Learning health by peer over the last steps. A peer stands out if a value of its newest step is
// far from the others': eight times the usual distance from the median, and 15 % of it.
export const HEALTH = [
  ["cosine", "cosine"],
  ["gradient_norm", "gradient norm"],
  ["quantisation_error", "quantisation"],
  ["loss", "training loss"],
];

export function healthByPeer(series) {
  const peers = new Map();
  for (const row of (series && series.recent) || []) {
    if (!peers.has(row.peer)) peers.set(row.peer, { peer: row.peer, rows: [] });
    peers.get(row.peer).rows.push(row);
  }
  // Seeds report nothing about learning.
  const found = Array.from(peers.values()).filter((each) => each.rows.some((row) => HEALTH.some(([metric]) => known(row[metric]))));
  for (const [metric] of HEALTH) {
    const middles = found.map((each) => median(each.rows.map((row) => row[metric])));
    const middle = median(middles);
    const usual = median(middles.map((value) => (known(value) ? Math.abs(value - middle) : null)));
    found.forEach((each, at) => {
      const far = known(middles[at]) && Math.abs(middles[at] - middle) > Math.max(8 * usual, 0.15 * Math.abs(middle));
      each[metric] = { value: middles[at], far, values: each.rows.map((row) => row[metric]) };
    });
  }
  return found;
}

export function healthSentence(health, nameOf) {
  const far = health.filter((each) => HEALTH.some(([metric]) => each[metric].far));
  if (!health.length) return "No peer has reported yet.";
  const middle = median(health.map((each) => each.cosine.value));
  const opening = `The median cosine between a peer's change and the mean is ${fixed(middle, 2)}`;
  if (!far.length) return opening + "; no peer stands out.";
  const names = far.slice(0, 3).map((each) => short(nameOf(each.peer)));
  const more = far.length > 3 ? ` and ${far.length - 3} more` : "";
  return `${opening}; ${names.join(", ")}${more} stand${far.length === 1 ? "s" : ""} out.`;
}

// The key of the peers that the server has already summed.
const REST = "rest";

// The largest contributors by throughput, and the rest as one. `others` is their number, or null if
// it is not known.
export function stackedThroughput(series, top = 8) {
  const throughput = (series && series.throughput) || {};
  const step = throughput.step || [];
  const byPeer = Object.entries(throughput.by_peer || {});
  const sizes = byPeer.filter(([peer]) => peer !== REST).map(([peer, values]) => [peer, values.slice(-50).reduce((sum, value) => sum + (value || 0), 0)]);
  sizes.sort((one, other) => other[1] - one[1]);
  const shown = sizes.slice(0, top).map(([peer]) => peer);
  const rest = new Array(step.length).fill(0);
  const lines = new Map(shown.map((peer) => [peer, null]));
  for (const [peer, values] of byPeer) {
    if (lines.has(peer)) lines.set(peer, values.map((value) => value || 0));
    else values.forEach((value, at) => (rest[at] += value || 0));
  }
  return { step, peers: shown, lines: shown.map((peer) => lines.get(peer)), rest, others: throughput.by_peer && throughput.by_peer[REST] ? null : Math.max(0, byPeer.length - top) };
}

function utilisation(series) {
  const rows = (series && series.recent) || [];
  let training = 0;
  let all = 0;
  for (const row of rows) {
    const parts = [row.train_ms, row.data_wait_ms, row.wait_ms, row.exchange_ms, row.fetch_ms, row.apply_ms];
    training += row.train_ms || 0;
    all += parts.reduce((sum, part) => sum + (part || 0), 0);
  }
  return all > 0 ? training / all : null;
}

export function throughputSentence(series) {
  const { step, lines, rest } = stackedThroughput(series);
  if (!step.length) return "No outer step has been agreed yet.";
  const newest = lines.reduce((sum, values) => sum + last(values), 0) + (last(rest) || 0);
  const used = utilisation(series);
  const opening = `The peers train ${count(newest)} tokens a second together`;
  return used === null ? opening + "." : `${opening} and spend ${percent(used, 0)} of their time on training.`;
}

export function timeLeftWords(left) {
  if (!left) return { value: "–", note: "" };
  return { value: duration(left.seconds), note: `± ${duration(left.spread)}, ${duration(left.stepSeconds)} a step` };
}

export function peersWords(members) {
  const voters = members.filter((each) => each.role === "voter").length;
  return plural(voters, "voter");
}
