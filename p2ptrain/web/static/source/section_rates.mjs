// Throughput by peer, active peers by state, and exchange times.

import { chart, hatched, ink, key } from "./chart.mjs";
import { figure, peerLabel } from "./dom.mjs";
import { membersOf, nameOf } from "./model.mjs";
import { column, exchanges, last, median, stackedThroughput, statesOf, throughputSentence } from "./numbers.mjs";
import { bytes, count, duration, known, listed, plural, short, tick } from "./text.mjs";

const TOP = 8;
const TABLE_ROWS = 100;

export function mountThroughput(app, section) {
  const view = figure("Throughput", { axes: "tokens a second, by outer step", rows: () => rows() });
  section.append(view.root);
  let stacked = { step: [], peers: [], lines: [], rest: [], others: 0 };
  const fills = () => Array.from({ length: TOP + 1 }, (_, at) => hatched(ink("c" + (at + 1)), at % 4));
  const plot = chart(view.drawing, {
    height: 220, x: String, y: tick, range: (_, low, high) => [0, (high || 1) * 1.05],
    // The topmost sum is drawn first, and the smaller ones over it.
    lines: () => {
      const patterns = fills();
      const found = names().map((label, at) => ({ label, ink: ink("panel"), width: 0.8, fill: patterns[at] }));
      return found.reverse();
    },
  });
  let shown = "";
  const names = () => stacked.peers.concat(stacked.others === 0 ? [] : ["rest"]);

  function update() {
    if (!app.model.series) return;
    stacked = stackedThroughput(app.model.series, TOP);
    const sums = [];
    let below = new Array(stacked.step.length).fill(0);
    for (const values of stacked.others === 0 ? stacked.lines : stacked.lines.concat([stacked.rest])) {
      below = below.map((sum, at) => sum + values[at]);
      sums.push(below);
    }
    const layers = names().join();
    if (shown !== layers && plot.plot) {
      plot.plot.destroy();
      plot.plot = null;
    }
    shown = layers;
    plot.show([stacked.step, ...sums.reverse()]);
    view.say(throughputSentence(app.model.series));
    const words = stacked.peers.map((peer) => short(nameOf(app.model, peer), 20)).concat(stacked.others === 0 ? [] : [stacked.others ? `${stacked.others} others` : "others"]);
    view.legend.replaceChildren(...words.map((word, at) => key(word, { color: "c" + (at + 1), pattern: (at % 4) + 1 })).reverse());
  }

  function rows() {
    const columns = [["step", true], ...stacked.peers.map((peer) => [short(nameOf(app.model, peer), 20), true]), ["others", true]];
    const found = [];
    for (let at = stacked.step.length - 1; at >= Math.max(0, stacked.step.length - TABLE_ROWS); at--) {
      found.push([String(stacked.step[at]), ...stacked.lines.map((values) => count(Math.round(values[at]))), count(Math.round(stacked.rest[at]))]);
    }
    return [columns, found];
  }
  return update;
}

export function mountActive(app, section) {
  const view = figure("Active peers", { axes: "peers, by outer step", rows: () => rows(app) });
  section.append(view.root);
  const plot = chart(view.drawing, {
    height: 220, left: 30, x: String, y: String, range: (_, low, high) => [0, Math.ceil((high || 1) * 1.1)],
    lines: () => [
      { label: "members", ink: ink("muted"), width: 1, dash: [4, 3] },
      { label: "participants", ink: ink("c1"), width: 1.25, fill: hatched(ink("c1-soft"), 0) },
    ],
  });
  view.legend.replaceChildren(key("took part in the exchange", { color: "c1", pattern: 1 }), key("members, with seeds", { color: "muted", dash: true }));
  return () => {
    const series = app.model.series;
    if (!series) return;
    plot.show([column(series, "step"), column(series, "members"), column(series, "participants")]);
    const states = statesOf(membersOf(app.model)).map(([name, number]) => `${number} ${name}`);
    const opening = `${last(column(series, "participants")) ?? 0} of ${plural(last(column(series, "members")) ?? 0, "member")} took part in the newest exchange`;
    view.say(states.length ? `${opening}; now: ${listed(states.slice(0, 5).map((each) => short(each)))}.` : opening + ".");
  };
}

function rows({ model }) {
  const steps = column(model.series, "step");
  const found = [];
  for (let at = steps.length - 1; at >= Math.max(0, steps.length - TABLE_ROWS); at--) {
    found.push([String(steps[at]), count(column(model.series, "participants")[at]), count(column(model.series, "members")[at])]);
  }
  return [[["step", true], ["participants", true], ["members", true]], found];
}

export function mountExchange(app, section) {
  let found = [];
  const view = figure("Exchange times", { axes: "time, by outer step", rows: () => exchangeRows(app, found) });
  section.append(view.root);
  const plot = chart(view.drawing, {
    height: 200, left: 40, x: String, y: (value) => `${value} s`, range: (_, low, high) => [0, (high || 1) * 1.1],
    bands: [{ series: [2, 1], fill: () => hatched(ink("c2-soft"), 1) }],
    lines: () => [
      { label: "p50", ink: ink("c2"), width: 1.75 },
      { label: "p95", ink: ink("c2"), width: 1, dash: [4, 3] },
    ],
  });
  view.legend.replaceChildren(key("median peer", { color: "c2" }), key("95 % of peers are faster", { color: "c2", dash: true }));
  return () => {
    const series = app.model.series;
    if (!series) return;
    found = exchanges(series);
    const whole = series.exchange;
    if (whole && Array.isArray(whole.step) && whole.step.length > found.length) plot.show([whole.step, inSeconds(whole.p50), inSeconds(whole.p95)]);
    else plot.show([found.map((each) => each.step), found.map((each) => each.p50), found.map((each) => each.p95)]);
    view.say(exchangeSentence(app, found));
  };
}

function inSeconds(values) {
  return (values || []).map((value) => (known(value) ? value / 1000 : null));
}

function exchangeSentence({ model }, found) {
  const newest = found.filter((each) => known(each.p50)).pop();
  if (!newest) return "No exchange has been reported yet.";
  const turns = new Map();
  for (const each of found) if (each.slowest) turns.set(each.slowest.peer, (turns.get(each.slowest.peer) || 0) + 1);
  const [peer, times] = Array.from(turns).sort((one, other) => other[1] - one[1])[0];
  return `The median exchange takes ${duration(median(found.map((each) => each.p50)))} and moves ${bytes(newest.bytes)} in all; ${short(nameOf(model, peer))} was slowest in ${times} of ${found.length}.`;
}

function exchangeRows(app, found) {
  const columns = [["step", true], ["median", true], ["95 %", true], ["bytes of all", true], ["slowest", false], ["its time", true]];
  const cells = found.map((each) => {
    const slow = each.slowest;
    return [String(each.step), duration(each.p50), duration(each.p95), bytes(each.bytes), slow ? peerLabel(app.model.names.get(slow.peer), slow.peer) : "–", slow ? duration(slow.exchange_ms / 1000) : "–"];
  });
  return [columns, cells.reverse()];
}
