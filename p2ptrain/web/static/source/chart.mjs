// Line charts by uPlot, with the page's colours. Colours are read from the style sheet, so charts
// are built anew when the theme changes.

import { h } from "./dom.mjs";

export function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

const FONT = "11px system-ui, sans-serif";
const built = new Set();

// `options`: height, lines [{label, ink, dash, width, points, fill, area}], and optionally log,
// x and y (formats of ticks), range, draw (a hook), sync (a key), bands.
export function chart(host, options) {
  host.style.minHeight = options.height + "px"; // The page does not move when data arrives.
  const self = { plot: null, data: null, shown: "" };
  self.show = (data) => {
    const digest = data.map(digestOf).join();
    self.data = data;
    if (!self.plot) self.build();
    else if (digest !== self.shown) self.plot.setData(data);
    self.shown = digest;
  };
  self.build = () => {
    if (self.plot) self.plot.destroy();
    self.plot = null;
    const width = host.clientWidth;
    if (!width || !self.data) return;
    self.plot = new uPlot(settings(options, width), self.data, host);
  };
  const watch = new ResizeObserver(() => {
    if (!self.plot) self.build();
    else if (host.clientWidth) self.plot.setSize({ width: host.clientWidth, height: options.height });
  });
  watch.observe(host);
  built.add(self);
  return self;
}

// Changes when values change, because lines are drawn only then.
function digestOf(values) {
  let sum = values.length;
  for (const value of values) sum += value || 0;
  return sum;
}

export function rebuildCharts() {
  for (const each of built) if (each.data) each.build();
}

// Distances between marks on an axis of outer steps: there are no parts of a step.
const WHOLE = [1, 2, 5].flatMap((each) => Array.from({ length: 10 }, (_, power) => each * 10 ** power)).sort((one, other) => one - other);

function settings(options, width) {
  const axis = { stroke: ink("muted"), font: FONT, grid: { stroke: ink("grid"), width: 1 }, ticks: { show: false }, gap: 4 };
  const shown = (format) => (format ? (plot, values) => values.map((value) => (value === null ? "" : format(value))) : undefined);
  return {
    width,
    height: options.height,
    padding: [options.top || 8, 20, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: options.sync ? { key: options.sync } : undefined },
    scales: {
      x: { time: false },
      y: { distr: options.log ? 3 : 1, range: options.range },
    },
    axes: [
      { ...axis, size: options.bare ? 4 : 24, values: options.bare ? () => [] : shown(options.x), space: 64, incrs: options.x === String ? WHOLE : undefined },
      { ...axis, size: options.left || 48, values: shown(options.y), splits: options.splits, filter: options.splits ? (plot, values) => values : undefined, space: options.height < 100 ? 22 : 30 },
    ],
    series: [{}, ...options.lines().map(line)],
    bands: options.bands,
    hooks: { draw: options.draw ? [options.draw] : [], setCursor: options.read ? [options.read] : [] },
  };
}

function line(each) {
  return {
    label: each.label,
    stroke: each.ink,
    width: each.width ?? 1.5,
    dash: each.dash,
    fill: each.fill,
    spanGaps: true,
    points: { show: Boolean(each.points), size: each.points, fill: ink("panel"), stroke: each.ink, width: 1 },
    paths: each.points ? () => null : undefined,
  };
}

// Tick marks for a logarithmic axis that spans less than a decade or two.
export function logSplits(plot, axis, low, high) {
  const steps = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 10];
  const found = new Set();
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power++) {
    for (const step of steps) {
      const value = Number((step * 10 ** power).toPrecision(3));
      if (value >= low && value <= high) found.add(value);
    }
  }
  const all = Array.from(found);
  return all.length > 9 ? all.filter((_, at) => at % Math.ceil(all.length / 8) === 0) : all;
}

// A fill that differs by pattern as well as by colour.
export function hatched(color, kind) {
  const tile = document.createElement("canvas");
  const size = 10 * devicePixelRatio;
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = color;
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = pen.fillStyle = ink("panel");
  pen.globalAlpha = 0.3;
  pen.lineWidth = devicePixelRatio;
  const stroke = (...points) => {
    pen.beginPath();
    points.forEach(([x, y], at) => (at % 2 ? pen.lineTo(x * size, y * size) : pen.moveTo(x * size, y * size)));
    pen.stroke();
  };
  if (kind === 1) stroke([-0.25, 0.25], [0.25, -0.25], [0, 1], [1, 0], [0.75, 1.25], [1.25, 0.75]);
  if (kind === 2) stroke([-0.25, 0.75], [0.25, 1.25], [0, 0], [1, 1], [0.75, -0.25], [1.25, 0.25]);
  if (kind === 3) pen.fillRect(size / 4, size / 4, size / 4, size / 4);
  return pen.createPattern(tile, "repeat");
}

// A sample of a line, an area or a mark, with its name.
export function key(label, { color, dash, mark, pattern }) {
  const sample = h("span", { class: "key" + (dash ? " dash" : "") + (mark ? " mark" : "") + (pattern ? " area" : ""), "aria-hidden": "true" }, mark || "");
  if (pattern) sample.classList.add("p" + pattern);
  sample.style.setProperty("--key", `var(--${color})`);
  return h("span", { class: "entry" }, sample, label);
}
