// The ring of the last exchange, and learning health by peer.

import { h, figure, peerLabel, scrolling, spark, svg, table } from "./dom.mjs";
import { membersOf, nameOf } from "./model.mjs";
import { HEALTH, healthByPeer, healthSentence, ringOf } from "./numbers.mjs";
import { bits, clean, fixed, known, percent, plural, short, small } from "./text.mjs";

const PEERS_MAX = 64;

export function mountRing(app, section) {
  let edges = [];
  const view = figure("Ring", { rows: () => ringRows(edges) });
  const reason = h("p", { class: "muted" });
  section.append(view.root);
  view.drawing.after(reason);
  view.legend.replaceChildren(edgeKey(false, "direct or punched; width shows the rate"), edgeKey(true, "through a relay"));

  function update() {
    const { model } = app;
    if (!model.state) return;
    const ring = ringOf(model.state.status);
    edges = edgesOf(model, ring);
    const width = view.drawing.clientWidth;
    view.say(ringSentence(ring, edges));
    reason.textContent = ring && ring.reason ? "Reason: " + clean(ring.reason, 300) + "." : "";
    if (width) view.drawing.replaceChildren(edges.length > 1 ? drawRing(edges, Math.min(width, 520)) : "");
  }
  new ResizeObserver(update).observe(view.drawing);
  return update;
}

// Each edge leads from a peer to the next one in the order. Its rate is what the peer reported.
function edgesOf(model, ring) {
  const rows = (model.series || {}).recent || [];
  const newest = new Map(rows.map((row) => [row.peer, row]));
  const byName = new Map(membersOf(model).map((each) => [each.peer_name, each.peer]));
  for (const [peer, name] of model.names) if (!byName.has(name)) byName.set(name, peer);
  const order = ring ? ring.names.map((name) => [name, byName.get(name) || ""]) : Array.from(newest.keys(), (peer) => [nameOf(model, peer), peer]);
  return order.slice(0, PEERS_MAX).map(([name, peer], at, all) => {
    const row = newest.get(peer) || {};
    return { name, peer, to: all[(at + 1) % all.length][0], path: short(row.path, 12), rate: row.exchange_ms > 0 ? row.bytes_up / (row.exchange_ms / 1000) : null };
  });
}

function ringSentence(ring, edges) {
  if (!edges.length) return "There has been no exchange yet.";
  const relayed = edges.filter((each) => each.path === "relayed").length;
  const slow = edges.filter((each) => known(each.rate)).sort((one, other) => one.rate - other.rate)[0];
  const opening = ring ? `The last exchange used the schedule “${short(ring.schedule, 20)}” with ${plural(edges.length, "peer")}` : `${plural(edges.length, "peer")} exchanged; the order is not known here`;
  const middle = `, ${relayed} of them behind a relay`;
  return slow ? `${opening}${middle}; the slowest sender was ${short(slow.name)} with ${bits(slow.rate)}.` : `${opening}${middle}.`;
}

function drawRing(edges, width) {
  const wide = width > 420;
  const height = wide ? 340 : 300;
  const radius = wide ? 118 : 96;
  const [middleX, middleY] = [width / 2, height / 2];
  const place = (at, size) => {
    const angle = (2 * Math.PI * at) / edges.length - Math.PI / 2;
    return [middleX + size * Math.cos(angle), middleY + size * Math.sin(angle), angle];
  };
  const fastest = Math.max(1, ...edges.map((each) => each.rate || 0));
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "ring" });
  edges.forEach((edge, at) => {
    const [x1, y1] = place(at, radius);
    const [x2, y2] = place(at + 1, radius);
    const size = 1 + 5 * Math.sqrt((edge.rate || 0) / fastest);
    root.append(svg("line", { x1, y1, x2, y2, class: edge.path === "relayed" ? "edge relayed" : "edge", "stroke-width": size.toFixed(1) }));
  });
  edges.forEach((edge, at) => {
    const [x, y] = place(at, radius);
    const [textX, textY, angle] = place(at, radius + 12);
    const upright = Math.abs(Math.cos(angle)) < 0.2;
    const anchor = upright ? "middle" : Math.cos(angle) > 0 ? "start" : "end";
    const shift = upright ? (Math.sin(angle) > 0 ? 10 : -2) : 4;
    root.append(svg("circle", { cx: x, cy: y, r: 4.5, class: "node" }), svg("text", { x: textX, y: textY + shift, "text-anchor": anchor }, short(edge.name, wide ? 18 : 11)));
  });
  return root;
}

function edgeKey(relayed, words) {
  return h("span", { class: "entry" }, svg("svg", { width: 26, height: 10, "aria-hidden": "true", class: "ring" }, svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, class: relayed ? "edge relayed" : "edge", "stroke-width": 3 })), words);
}

function ringRows(edges) {
  return [[["from", false], ["to", false], ["rate", true], ["path", false]], edges.map((each) => [peerLabel(each.name, each.peer), h("bdi", {}, short(each.to)), bits(each.rate), each.path || "–"])];
}

export function mountHealth(app, section) {
  const summary = h("p", { class: "summary" });
  const place = h("div");
  section.append(summary, place, h("p", { class: "muted" }, "As reported by each peer: the median of its last 20 outer steps, and their course on a scale that all peers share. ◆ marks a value that is far from the other peers' values."));
  return () => {
    const health = healthByPeer(app.model.series);
    summary.textContent = healthSentence(health, (peer) => nameOf(app.model, peer));
    const formats = { cosine: (value) => fixed(value, 2), gradient_norm: small, quantisation_error: (value) => percent(value, 2), loss: (value) => fixed(value, 2) };
    const ranges = {};
    for (const [metric] of HEALTH) {
      const all = health.flatMap((each) => each[metric].values).filter(known);
      ranges[metric] = [Math.min(...all), Math.max(...all)];
    }
    health.sort((one, other) => flags(other) - flags(one) || (one.cosine.value ?? 2) - (other.cosine.value ?? 2));
    const columns = [["peer", false], ...HEALTH.map(([, words]) => [words, true])];
    const rows = health.slice(0, 200).map((each) => [
      peerLabel(nameOf(app.model, each.peer), each.peer, false),
      ...HEALTH.map(([metric]) => h("span", { class: each[metric].far ? "far" : null }, spark(each[metric].values, ...ranges[metric]), " ", (each[metric].far ? "◆ " : "") + formats[metric](each[metric].value))),
    ]);
    place.replaceChildren(scrolling("Learning health", table("Learning health", columns, rows)));
  };
}

function flags(each) {
  return HEALTH.filter(([metric]) => each[metric].far).length;
}
