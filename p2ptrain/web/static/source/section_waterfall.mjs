// The waterfall: the last outer steps, one lane for each peer, patterns beside colours.

import { figure, h, peerLabel, svg } from "./dom.mjs";
import { PARTS, pieces, totalMs, waitedFor, waterfall, waterfallSentence } from "./lanes.mjs";
import { nameOf } from "./model.mjs";
import { bytes, clean, duration, known, plural, short } from "./text.mjs";

const LANE = 19;
const GAP = 3;
const NARROW = 560;
const LANES = 12;
const LANES_NARROW = 6;
const STEPS_NARROW = 10;

export function mountWaterfall(app, section) {
  let chosen = null; // The number of the outer step that the details show.
  let found = null;
  const view = figure("Where the time goes", { rows: () => tableRows(app, found) });
  const note = h("p", { class: "muted" });
  const picker = h("div", { class: "steps", role: "group", "aria-label": "Outer step whose details are shown" });
  const details = h("div", { class: "details" });
  view.drawing.after(picker, note, details);
  section.append(view.root);
  view.legend.replaceChildren(...PARTS.map(([part, words]) => partKey(part, words)), partKey("down", "down, or no report"));

  function update() {
    const series = app.model.series;
    const width = view.drawing.clientWidth;
    if (!series || !width) return;
    const narrow = width < NARROW;
    found = waterfall(series, narrow ? LANES_NARROW : LANES, narrow ? STEPS_NARROW : 20);
    view.say(waterfallSentence(found, (peer) => nameOf(app.model, peer)));
    note.textContent = found.hidden ? `Shown are the ${found.lanes.length} slowest of ${found.all.length} peers, and the median of all. The table has every peer.` : "";
    const labels = narrow ? 112 : 146;
    view.drawing.replaceChildren(drawLanes(app, found, width, labels, choose));
    showPicker(width, labels);
    showDetails();
  }

  function choose(step) {
    chosen = step;
    for (const each of picker.children) press(each, Number(each.dataset.step) === chosen);
    showDetails();
  }

  function showPicker(width, labels) {
    const newest = found.steps[found.steps.length - 1];
    const current = found.steps.some((each) => each.step === chosen) ? chosen : newest && newest.step;
    const whole = found.steps.reduce((sum, each) => sum + each.seconds, 0);
    // Where labels would cover each other, only every second or third step has one.
    const room = (width - labels) / Math.max(1, found.steps.length);
    const every = Math.ceil((7 * String(newest ? newest.step : 0).length + 6) / room);
    const focused = picker.contains(document.activeElement) ? Number(document.activeElement.dataset.step) : null;
    picker.style.paddingInlineStart = labels + "px";
    picker.replaceChildren(...found.steps.map(({ step, seconds }, at) => {
      const button = h("button", { type: "button", "data-step": step, "aria-label": `Outer step ${step}`, onclick: () => choose(step), onkeydown: move }, (found.steps.length - 1 - at) % every ? "·" : String(step));
      button.style.width = (100 * seconds) / whole + "%";
      press(button, step === current);
      return button;
    }));
    if (focused !== null) (picker.querySelector(`[data-step="${focused}"]`) || picker.lastChild).focus();
  }

  function press(button, on) {
    button.setAttribute("aria-pressed", String(on));
    button.tabIndex = on ? 0 : -1;
  }

  // Arrow keys move between steps: the buttons are one stop for the tab key.
  function move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -99, End: 99 }[event.key];
    if (!by) return;
    event.preventDefault();
    const all = Array.from(picker.children);
    const at = Math.min(all.length - 1, Math.max(0, all.indexOf(event.currentTarget) + by));
    choose(Number(all[at].dataset.step));
    all[at].focus();
  }

  function showDetails() {
    const at = found.steps.findIndex((each) => each.step === chosen);
    const shown = at < 0 ? found.steps.length - 1 : at;
    if (shown < 0) return details.replaceChildren();
    details.replaceChildren(h("p", {}, stepSentence(app, found, shown)));
  }

  new ResizeObserver(() => update()).observe(view.drawing);
  return update;
}

function stepSentence(app, found, at) {
  const { step, seconds } = found.steps[at];
  const rows = found.all.map((lane) => lane.cells[at]).filter(Boolean);
  const sent = rows.reduce((sum, row) => sum + (row.bytes_up || 0), 0);
  const slow = waitedFor(found.all, at);
  const words = [`Outer step ${step} took ${duration(seconds)}; ${plural(rows.length, "peer")} reported and sent ${bytes(sent)}.`];
  if (slow) {
    const { row, aheadMs } = slow;
    const exchanged = row.exchange_ms > 0 ? `exchanged for ${duration(row.exchange_ms / 1000)}` : "took no part in the exchange";
    words.push(`The others waited for ${short(nameOf(app.model, row.peer))}: it was ready ${duration(aheadMs / 1000)} after the median peer, trained for ${duration((row.train_ms || 0) / 1000)}, ${exchanged}, and moved ${bytes(row.bytes_up)} up and ${bytes(row.bytes_down)} down.`);
  }
  return clean(words.join(" "), 600);
}

function partKey(part, words) {
  const sample = svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, svg("rect", { width: 22, height: 12, class: "part " + part, fill: fillOf(part), rx: 1 }));
  return h("span", { class: "entry" }, sample, words);
}

function fillOf(part) {
  return part === "train" ? "var(--w-train)" : `url(#pattern-${part})`;
}

// The patterns stand in the page once, because several drawings use them.
export function patterns() {
  const lines = {
    data_wait: ["M0 0h2v2h-2z M4 4h2v2h-2z", "w-data", true],
    wait: ["M-2 2l4 -4 M0 8l8 -8 M6 10l4 -4", "w-wait", false],
    exchange: ["M-2 6l4 4 M0 0l8 8 M6 -2l4 4", "w-exchange", false],
    fetch: ["M0 2h8 M2 0v8", "w-fetch", false],
    apply: ["M1 0v8 M5 0v8", "w-apply", false],
    down: ["", "w-down", false],
  };
  const found = Object.entries(lines).map(([part, [path, color, solid]]) =>
    svg("pattern", { id: "pattern-" + part, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      svg("rect", { width: 8, height: 8, fill: `var(--${color})` }),
      svg("path", solid ? { d: path, fill: "var(--w-line)" } : { d: path, stroke: `var(--${color}-line, var(--w-line))`, "stroke-width": 1.2, fill: "none" })),
  );
  return svg("svg", { width: 0, height: 0, class: "hidden", "aria-hidden": "true" }, svg("defs", {}, found));
}

function drawLanes(app, found, width, labels, choose) {
  const all = found.middle ? found.lanes.concat([found.middle]) : found.lanes;
  const height = all.length * (LANE + GAP) + (found.middle ? 6 : 0);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  all.forEach((lane, number) => {
    const y = number * (LANE + GAP) + (lane === found.middle ? 6 : 0);
    const name = lane.peer ? short(nameOf(app.model, lane.peer), labels < 120 ? 17 : 22) : "median";
    root.append(svg("text", { x: 0, y: y + 14, class: lane.peer ? "lane" : "lane strong" }, name), ...drawLane(lane, found.steps, labels, width - labels, y, choose));
  });
  const whole = found.steps.reduce((sum, each) => sum + each.seconds, 0) || 1;
  let x = labels;
  for (const each of found.steps) {
    root.append(svg("line", { x1: x, x2: x, y1: 0, y2: height, stroke: "var(--panel)", "stroke-width": 2 }));
    x += (each.seconds / whole) * (width - labels);
  }
  return root;
}

function drawLane(lane, steps, left, width, y, choose) {
  return pieces(lane, steps).map(({ part, at, x, width: size }) =>
    svg("rect", { x: (left + x * width).toFixed(2), y, width: Math.max(0.4, size * width).toFixed(2), height: LANE, class: "part " + part, fill: fillOf(part), onclick: () => choose(steps[at].step) }),
  );
}

// One lane by itself, for the section about the user's own node.
export function ownLane(series, peer, width) {
  const found = waterfall(series, 1000);
  const lane = found.all.find((each) => each.peer === peer);
  if (!lane) return null;
  const root = svg("svg", { width, height: LANE, viewBox: `0 0 ${width} ${LANE}`, "aria-hidden": "true" });
  root.append(...drawLane(lane, found.steps, 0, width, 0, () => {}));
  const newest = lane.cells.filter(Boolean).pop();
  return { root, newest };
}

export function partsSentence(cell) {
  if (!cell) return "";
  const whole = totalMs(cell) || 1;
  return PARTS.filter(([part]) => known(cell[part + "_ms"]) && cell[part + "_ms"] / whole > 0.005)
    .map(([part, words]) => `${words} ${duration(cell[part + "_ms"] / 1000)}`)
    .join(", ");
}

function tableRows(app, found) {
  const columns = [["peer", false], ["outer steps", true], ...PARTS.map(([, words]) => [words, true]), ["sent", true], ["received", true]];
  const rows = (found ? found.all : []).map((lane) => {
    const cells = lane.cells.filter(Boolean);
    const sum = (name) => cells.reduce((total, row) => total + (row[name] || 0), 0);
    return [peerLabel(app.model.names.get(lane.peer), lane.peer), String(cells.length), ...PARTS.map(([part]) => duration(sum(part + "_ms") / 1000)), bytes(sum("bytes_up")), bytes(sum("bytes_down"))];
  });
  return [columns, rows];
}
