// Elements. All text goes through `textContent`, so nothing that a peer wrote becomes markup.

import { short } from "./text.mjs";

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A peer's name. `bdi` keeps its direction of writing to itself. The end of the id tells apart
// peers with the same name.
export function peerLabel(name, peer, withId = true) {
  const id = withId && peer ? h("span", { class: "id" }, "…" + short(String(peer).slice(-6))) : null;
  return h("span", { class: "peer" }, h("bdi", {}, short(name, 32)), id);
}

// `columns` are [label, isNumber]; `rows` are lists of texts or elements.
export function table(caption, columns, rows) {
  const head = h("tr", {}, columns.map(([label, number]) => h("th", { scope: "col", class: number ? "number" : null }, label)));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, at) => tableCell(cell, columns[at]))));
  return h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, head), h("tbody", {}, body));
}

function tableCell(content, [label, number]) {
  return h("td", { class: number ? "number" : null, "data-label": label }, content);
}

// A region that scrolls by itself and can be reached by keyboard.
export function scrolling(label, content) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, content);
}

// The frame of a chart: a sentence, the drawing, and a table that is made when it is opened.
export function figure(label, { axes = "", rows }) {
  const sentence = h("p", { class: "summary" });
  const drawing = h("div", { class: "drawing", role: "img", "aria-label": label });
  const legend = h("div", { class: "legend" });
  const place = h("div");
  const more = h("details", { class: "as-table" }, h("summary", {}, "Show as a table"), place);
  const fill = () => {
    if (more.open) place.replaceChildren(scrolling(label + " as a table", table(label, ...rows())));
  };
  more.addEventListener("toggle", fill);
  const root = h("div", { class: "figure" }, sentence, legend, axes ? axisTitle(axes) : null, drawing, more);
  const say = (text) => {
    setText(sentence, text);
    drawing.setAttribute("aria-label", `${label}. ${text}`);
    fill();
  };
  return { root, drawing, legend, say };
}

// The title of a vertical axis stands above it.
export function axisTitle(words) {
  return h("p", { class: "axis-title" }, words);
}

// A group of buttons of which one is pressed.
export function choice(label, options, chosen, onChoice) {
  const buttons = options.map(([value, words]) =>
    h("button", { type: "button", class: "chip", "aria-pressed": String(value === chosen), "data-value": value, onclick: () => choose(value) }, words),
  );
  function choose(value) {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.value === value));
    onChoice(value);
  }
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}

// A small line of values between `low` and `high`. It only repeats numbers that stand beside it.
export function spark(values, low, high, width = 44, height = 16) {
  const span = high - low || 1;
  const points = values
    .map((value, at) => [((at + 0.5) / values.length) * width, height - 2 - ((value - low) / span) * (height - 4), value])
    .filter(([, , value]) => typeof value === "number")
    .map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
  return svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}

export function code(text) {
  return h("code", {}, text);
}
