// The header: name, one sentence, key figures, phases, and the age of the data. Then the alerts.

import { byId, h, setText } from "./dom.mjs";
import { dataAge, membersOf } from "./model.mjs";
import { PHASES, heldOut, peersWords, stateName, statesOf, timeLeft, timeLeftWords } from "./numbers.mjs";
import { age, clean, clock, count, dayAndTime, duration, fixed, known, percent, plural, short } from "./text.mjs";

const STALE_S = 10;
const ALERTS_MAX = 8;
const COPIES_WANTED = 3;

export function showHeader(app) {
  const { model } = app;
  const state = model.state;
  if (!state) return;
  const run = state.run || {};
  const name = short(run.name, 60) || "p2ptrain";
  setText(byId("name"), name);
  setText(byId("about"), short(run.model, 120));
  setText(byId("sentence"), clean(state.sentence, 400));
  document.title = name + " · p2ptrain";
  byId("figures").replaceChildren(...figures(app).map(([label, value, note, part]) => tile(label, value, note, part)));
  showPhases(state.status, membersOf(model));
  showAlerts(app);
  announce(app);
  showAge(app);
}

function figures({ model, staticReport }) {
  const state = model.state;
  const status = state.status || {};
  const run = state.run || {};
  const series = model.series;
  const steps = status.outer_steps || run.steps;
  const step = status.outer_step ?? lastStep(series);
  const left = timeLeftWords(timeLeft(series, steps));
  const held = heldOut(series);
  const tokens = status.tokens_total || lastOf(series, "tokens_total");
  const expected = known(step) && step > 0 && steps ? (tokens / step) * steps : null;
  const members = membersOf(model);
  const snapshot = (state.snapshots || [])[0];
  return [
    ["Progress", known(tokens) ? `${count(tokens)} tokens` : "–", `step ${step ?? "–"} of ${steps ?? "–"}` + (expected ? `, about ${count(expected)} in all` : ""), steps ? step / steps : null],
    ["Time left", left.value, left.note],
    ["Held-out loss", held ? fixed(held.loss, 3) : "–", held && held.change !== null ? `${signed(held.change)} in ${duration(held.seconds)}` : ""],
    ["Peers", members.length ? String(members.length) : "–", members.length ? peersWords(members) : ""],
    ["Newest snapshot", snapshot ? `step ${snapshot.step}` : "–", snapshot ? snapshotNote(series, snapshot, staticReport ? state.now : Date.now() / 1000) : ""],
  ];
}

function lastStep(series) {
  return lastOf(series, "step");
}

function lastOf(series, name) {
  const values = (series && series.steps && series.steps[name]) || [];
  return values[values.length - 1];
}

function snapshotNote(series, snapshot, now) {
  const { step = [], time = [] } = (series && series.steps) || {};
  const at = step.indexOf(snapshot.step);
  const copies = known(snapshot.copies) ? plural(snapshot.copies, "copy").replace("copys", "copies") : "";
  const made = at >= 0 ? `${duration(now - time[at])} old` : "";
  return [made, copies].filter(Boolean).join(", ");
}

function signed(change) {
  return (change > 0 ? "+" : "") + fixed(change, 3);
}

function tile(label, value, note, part) {
  const meter = known(part) ? h("progress", { value: part, max: 1, "aria-label": `${label}: ${percent(part)}` }) : null;
  return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, h("b", {}, value), meter, h("span", { class: "muted" }, note || "")));
}

function showPhases(status, members) {
  const place = byId("phases");
  if (!status) return place.replaceChildren();
  const now = stateName(status.state_name || status.state);
  const counts = new Map(statesOf(members));
  const names = PHASES.concat(Array.from(counts.keys()).filter((name) => !PHASES.includes(name)), PHASES.includes(now) || counts.has(now) ? [] : [now]);
  const shown = names.filter((name) => counts.get(name) || name === now || name === "training" || name === "exchanging");
  place.replaceChildren(
    h("ol", { class: "phases", "aria-label": "States of the peers" }, shown.map((name) => phase(name, counts.get(name) || 0, name === now ? clean(status.state, 80) : ""))),
  );
}

function phase(name, number, own) {
  const words = own ? h("span", { class: "own" }, "you: ", own) : null;
  const item = h("li", { class: own ? "now" : null, "aria-current": own ? "step" : null }, h("b", {}, String(number)), " ", short(name, 24), words);
  item.style.flexGrow = String(1 + number);
  return item;
}

// Facts for which somebody has to do something. The organiser's node knows of requests to join.
function showAlerts({ model }) {
  const state = model.state;
  const status = state.status || {};
  const found = [];
  for (const each of (status.asking || []).slice(0, ALERTS_MAX)) {
    found.push(["asks to join", clean(each, 200), "p2ptrain peers pending"]);
  }
  if (status.branch) found.push(["branch", clean(status.branch, 300), ""]);
  for (const each of status.cautions || []) {
    found.push([short(each.code, 20), [clean(each.what, 300), clean(each.do, 200)].filter(Boolean).join(": "), each.code ? `p2ptrain explain ${short(each.code, 20)}` : ""]);
  }
  const snapshot = (state.snapshots || [])[0];
  const told = found.some(([, text]) => text.includes("snapshot"));
  if (snapshot && known(snapshot.copies) && snapshot.copies < COPIES_WANTED && !told) {
    found.push(["few copies", `The newest snapshot has only ${snapshot.copies} copies online.`, "p2ptrain ckpt ls"]);
  }
  const place = byId("alerts");
  place.hidden = found.length === 0;
  const rest = found.length - ALERTS_MAX;
  place.replaceChildren(
    h("ul", {}, found.slice(0, ALERTS_MAX).map(([kind, text, command]) => h("li", {}, h("span", { class: "tag" }, kind), h("bdi", {}, text), command ? h("code", {}, command) : null)), rest > 0 ? h("li", {}, `${rest} more: p2ptrain status`) : null),
  );
}

// Screen readers hear changes of the state, and nothing else.
function announce(app) {
  const { status, run } = app.model.state;
  const name = short(run && run.name);
  const state = status ? short(status.state_name || stateName(status.state)) : "no node is running";
  if (app.announced !== undefined && app.announced !== state) setText(byId("live"), `${name}: your node is now ${state}.`);
  app.announced = state;
}

// Called every second: the age of the data, in words.
export function showAge(app) {
  const { model, staticReport } = app;
  const now = Date.now();
  const text = byId("fresh-text");
  const state = model.state;
  if (!state) {
    const waiting = (now - app.openedAt) / 1000;
    setText(text, waiting < 3 ? "connecting" : "no answer yet");
    return markStale(app, waiting > STALE_S ? `No answer from your node for ${age(waiting)}. Is it running? See: p2ptrain status` : "");
  }
  if (staticReport) {
    setText(text, `report of ${dayAndTime(state.now)}, ${age(now / 1000 - state.now)} ago`);
    return markStale(app, "");
  }
  const silent = (now - model.receivedAt) / 1000;
  const heard = dataAge(model, now);
  const old = heard ?? (silent > STALE_S ? silent : null);
  const dataTime = state.now - (state.heard_s_ago || 0);
  if (old === null) {
    setText(text, "no node is running; this is its history");
    return markStale(app, "");
  }
  setText(text, old > STALE_S ? "not live" : `live, data of ${clock(dataTime)}`);
  markStale(app, old > STALE_S ? `No data for ${age(old)}; this page shows the state of ${clock(dataTime)}` : "");
}

function markStale(app, words) {
  const banner = byId("stale");
  document.body.classList.toggle("stale", words !== "");
  banner.hidden = words === "";
  setText(banner, words);
  const lost = words !== "";
  if (app.lost !== undefined && app.lost !== lost) setText(byId("live"), lost ? "The page no longer gets data from the node." : "The page gets data from the node again.");
  app.lost = lost;
}
