// Loss against certified tokens, with learning rate and gradient norm on the same axis.

import { chart, ink, key, logSplits } from "./chart.mjs";
import { axisTitle, choice, figure, h } from "./dom.mjs";
import { column, lossSentence } from "./numbers.mjs";
import { clock, count, dayAndTime, fixed, known, small, tick } from "./text.mjs";

const MARKS = { join: "▲", leave: "▼", lost: "▽", amendment: "◆", skip: "✕", retry: "↻", branch: "Y", heal: "Y" };
const LINED = new Set(["amendment", "branch", "heal", "skip"]);
const TABLE_ROWS = 200;

export function mountLoss(app, section) {
  let axis = "tokens_total";
  const view = figure("Loss", { axes: "nats a token, logarithmic", rows: () => rows(app.model.series) });
  const onAxis = choice("Horizontal axis", [["tokens_total", "tokens"], ["step", "outer step"], ["time", "time"]], axis, (value) => {
    axis = value;
    update();
  });
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const hosts = [0, 1, 2].map(() => h("div", { class: "plot" }));
  const titles = ["learning rate", "gradient norm"].map(axisTitle);
  view.drawing.append(hosts[0], titles[0], hosts[1], titles[1], hosts[2]);
  section.append(h("div", { class: "tools" }, onAxis, readout), view.root);

  const format = (value) => (axis === "time" ? (span() > 86400 * 2 ? dayAndTime(value) : clock(value, false)) : tick(value));
  const span = () => {
    const times = column(app.model.series, "time");
    return times.length ? times[times.length - 1] - times[0] : 0;
  };
  const common = { sync: "loss", left: 52, read: (plot) => read(plot.cursor.idx) };
  const charts = [
    chart(hosts[0], {
      ...common, height: 272, top: 20, log: true, x: format, y: (value) => String(value), splits: logSplits,
      range: (plot, low, high) => (known(low) ? [low * 0.97, Math.max(high, entropy() || 0) * 1.03] : [1, 10]),
      lines: () => [
        { label: "training", ink: ink("c1"), width: 1.25 },
        { label: "held out", ink: ink("c2"), points: 4 },
      ],
      draw: (plot) => drawMarks(plot, app.model, axis),
    }),
    chart(hosts[1], { ...common, height: 58, bare: true, y: small, lines: () => [{ label: "learning rate", ink: ink("c3"), width: 1.25 }] }),
    chart(hosts[2], { ...common, height: 58, bare: true, y: small, lines: () => [{ label: "gradient norm", ink: ink("c4"), width: 1.25 }] }),
  ];
  const entropy = () => entropyOf(app.model);

  function read(at) {
    const series = app.model.series;
    const step = column(series, "step")[at];
    readout.textContent = at === null || at === undefined || step === undefined ? "" :
      `step ${step}, ${count(column(series, "tokens_total")[at])} tokens, ${dayAndTime(column(series, "time")[at])}: loss ${fixed(column(series, "loss")[at], 3)}, held out ${fixed(column(series, "held_out")[at], 3)}`;
  }

  function update() {
    const series = app.model.series;
    if (!series) return;
    const xs = column(series, axis);
    view.say(lossSentence(series));
    charts[0].show([xs, column(series, "loss"), column(series, "held_out")]);
    charts[1].show([xs, column(series, "learning_rate")]);
    charts[2].show([xs, column(series, "gradient_norm")]);
    const kinds = new Set(marked(app.model.events).map((each) => each.kind));
    view.legend.replaceChildren(
      key("training loss, weighted mean of reports", { color: "c1" }),
      key("held-out loss", { color: "c2", mark: "●" }),
      known(entropy()) ? key("unigram entropy of the data", { color: "muted", dash: true }) : "",
      ...Array.from(kinds, (kind) => key(kind, { color: "muted", mark: MARKS[kind] })),
    );
  }
  return update;
}

function entropyOf(model) {
  return model.series && model.series.unigram_entropy;
}

// Draw the unigram entropy as a line, and a sign for each event.
function drawMarks(plot, model, axis) {
  const { ctx: pen, bbox } = plot;
  const ratio = devicePixelRatio;
  pen.save();
  pen.font = `${11 * ratio}px system-ui, sans-serif`;
  pen.textAlign = "right";
  pen.textBaseline = "bottom";
  pen.strokeStyle = pen.fillStyle = ink("muted");
  const reference = entropyOf(model);
  if (known(reference)) {
    const y = plot.valToPos(reference, "y", true);
    pen.setLineDash([2 * ratio, 3 * ratio]);
    strokeLine(pen, bbox.left, y, bbox.left + bbox.width, y);
    pen.fillText("unigram entropy " + fixed(reference, 2), bbox.left + bbox.width - 4 * ratio, y - 4 * ratio);
  }
  pen.textAlign = "center";
  pen.setLineDash([ratio, 3 * ratio]);
  const steps = column(model.series, "step");
  const xs = column(model.series, axis);
  let right = -Infinity;
  for (const event of marked(model.events)) {
    const at = steps.indexOf(event.step);
    if (at < 0) continue;
    const x = plot.valToPos(xs[at], "x", true);
    if (LINED.has(event.kind)) strokeLine(pen, x, bbox.top, x, bbox.top + bbox.height);
    // Marks that would cover their neighbour are left out here; the events list them all.
    if (x - right < 9 * ratio && !LINED.has(event.kind)) continue;
    pen.fillText(MARKS[event.kind], x, bbox.top - 3 * ratio);
    right = x;
  }
  pen.restore();
}

function strokeLine(pen, x, y, toX, toY) {
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(toX, toY);
  pen.stroke();
}

function marked(events) {
  return events.filter((each) => MARKS[each.kind]).reverse();
}

function rows(series) {
  const columns = [["step", true], ["time", false], ["tokens", true], ["loss", true], ["held out", true], ["learning rate", true], ["gradient norm", true], ["participants", true], ["attempts", true]];
  const names = ["step", "time", "tokens_total", "loss", "held_out", "learning_rate", "gradient_norm", "participants", "attempt"];
  const formats = [String, dayAndTime, count, (value) => fixed(value, 3), (value) => fixed(value, 3), small, small, count, count];
  const length = column(series, "step").length;
  const found = [];
  for (let at = length - 1; at >= Math.max(0, length - TABLE_ROWS); at--) {
    found.push(names.map((name, place) => formats[place](column(series, name)[at])));
  }
  return [columns, found];
}
