// The waterfall's lanes: how each peer spent the last outer steps. It does not know the document.

import { duration, known, short } from "./text.mjs";
import { groupedBySteps, median, quantile } from "./numbers.mjs";

// The order in which a peer passes through them in an outer step.
export const PARTS = [
  ["train", "train"],
  ["data_wait", "data wait"],
  ["wait", "wait"],
  ["exchange", "exchange"],
  ["fetch", "fetch"],
  ["apply", "apply"],
];

// `steps` are the columns, oldest first, with their length in seconds. A lane has one cell for each column:
// the parts in milliseconds, or null if the peer was down or did not report.
export function waterfall(series, lanesMax, stepsMax = 20) {
  const grouped = groupedBySteps(series).slice(-stepsMax);
  const lengths = stepLengths(series);
  const steps = grouped.map(({ step, rows }) => ({ step, seconds: lengths.get(step) ?? longest(rows) }));
  const lanes = new Map();
  grouped.forEach(({ rows }, at) => {
    for (const row of rows) {
      if (!lanes.has(row.peer)) lanes.set(row.peer, { peer: row.peer, cells: new Array(grouped.length).fill(null) });
      if (reported(row)) lanes.get(row.peer).cells[at] = row;
    }
  });
  const all = Array.from(lanes.values());
  for (const lane of all) lane.busy = median(lane.cells.filter(Boolean).map(busyMs)) ?? 0;
  all.sort((one, other) => other.busy - one.busy);
  if (all.length <= lanesMax) return { steps, lanes: all, middle: null, hidden: 0, all };
  return { steps, lanes: all.slice(0, lanesMax), middle: medianLane(all, grouped.length), hidden: all.length - lanesMax, all };
}

function reported(row) {
  return PARTS.some(([name]) => known(row[name + "_ms"]) && row[name + "_ms"] > 0);
}

// Milliseconds for which other peers may have to wait.
function busyMs(row) {
  return (row.train_ms || 0) + (row.data_wait_ms || 0) + (row.fetch_ms || 0) + (row.exchange_ms || 0);
}

export function totalMs(row) {
  return PARTS.reduce((sum, [name]) => sum + (row[name + "_ms"] || 0), 0);
}

function longest(rows) {
  return Math.max(1, ...rows.map(totalMs)) / 1000;
}

function stepLengths(series) {
  const { step = [], time = [] } = series.steps || {};
  const found = new Map();
  for (let at = 1; at < step.length; at++) {
    const passed = step[at] - step[at - 1];
    const seconds = (time[at] - time[at - 1]) / passed;
    if (passed > 0 && seconds > 0) found.set(step[at], seconds);
  }
  return found;
}

function medianLane(lanes, columns) {
  const cells = [];
  for (let at = 0; at < columns; at++) {
    const rows = lanes.map((lane) => lane.cells[at]).filter(Boolean);
    const cell = {};
    for (const [name] of PARTS) cell[name + "_ms"] = median(rows.map((row) => row[name + "_ms"])) ?? 0;
    cells.push(rows.length ? cell : null);
  }
  return { peer: "", cells, busy: 0 };
}

// A smaller part of a step that no report covers is left blank: clocks differ by that much.
const REST_MIN = 0.02;

// Pieces of a lane as fractions of the whole width. A cell longer than its step is drawn shorter,
// to scale: clocks of peers differ, and this node measured the step's length.
export function pieces(lane, steps) {
  const whole = steps.reduce((sum, each) => sum + each.seconds, 0) || 1;
  const found = [];
  let start = 0;
  steps.forEach((each, at) => {
    const width = each.seconds / whole;
    const cell = lane.cells[at];
    if (!cell) {
      found.push({ part: "down", at, x: start, width });
    } else {
      const unit = width / Math.max(each.seconds * 1000, totalMs(cell));
      let x = start;
      for (const [part] of PARTS) {
        const size = (cell[part + "_ms"] || 0) * unit;
        if (size > 0) found.push({ part, at, x, width: size });
        x += size;
      }
      const rest = start + width - x;
      if (rest > REST_MIN * width) found.push({ part: "down", at, x, width: rest });
    }
    start += width;
  });
  return found;
}

// A peer that is ready only this part of its outer step after the others does not keep them waiting.
const LATE_MIN = 0.05;

// The peer that the others waited for in column `at`, if any: the peer that was ready last.
export function waitedFor(all, at) {
  const rows = all.map((lane) => lane.cells[at]).filter(Boolean);
  if (rows.length < 2) return null;
  const ready = (row) => (row.train_ms || 0) + (row.data_wait_ms || 0) + (row.fetch_ms || 0);
  const slowest = rows.reduce((worst, row) => (ready(row) > ready(worst) ? row : worst));
  const others = median(rows.filter((row) => row !== slowest).map(ready));
  const aheadMs = ready(slowest) - others;
  return aheadMs > LATE_MIN * totalMs(slowest) ? { row: slowest, aheadMs } : null;
}

export function waterfallSentence(found, nameOf) {
  const { steps, all } = found;
  if (!steps.length) return "No peer has reported an outer step yet.";
  const turns = new Map();
  let ahead = [];
  steps.forEach((_, at) => {
    const slow = waitedFor(all, at);
    if (slow) {
      turns.set(slow.row.peer, (turns.get(slow.row.peer) || 0) + 1);
      ahead.push(slow.aheadMs / 1000);
    }
  });
  const [peer, times] = Array.from(turns).sort((one, other) => other[1] - one[1])[0] || [null, 0];
  const span = steps.length === 1 ? "the only outer step" : `the last ${steps.length} outer steps`;
  if (peer === null) return `In ${span}, ${all.length === 1 ? "one peer reported" : "no peer kept the others waiting"}.`;
  return `In ${times} of ${span}, ${short(nameOf(peer))} was ready last, usually ${duration(quantile(ahead, 0.5))} after the median peer.`;
}
