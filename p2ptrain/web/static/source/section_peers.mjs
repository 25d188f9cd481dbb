// Peers, contributors and snapshots: tables.

import { choice, code, h, peerLabel, scrolling, table } from "./dom.mjs";
import { membersOf } from "./model.mjs";
import { age, clean, count, fixed, known, listed, percent, plural, short } from "./text.mjs";

const HEALTH_WORDS = { green: ["●", "heard"], yellow: ["▲", "late"], red: ["■", "silent"] };
const ROWS_MAX = 200;

export function mountPeers(app, section) {
  let order = "name";
  const summary = h("p", { class: "summary" });
  const place = h("div");
  const sorting = choice("Order of the peers", [["name", "name"], ["rate", "tokens/s"], ["heard", "last heard"]], order, (value) => {
    order = value;
    update();
  });
  section.append(h("div", { class: "tools" }, sorting), summary, place);
  const orders = {
    name: (one, other) => short(one.peer_name).localeCompare(short(other.peer_name)),
    rate: (one, other) => (other.tokens_per_s || 0) - (one.tokens_per_s || 0),
    heard: (one, other) => (other.heard_s_ago || 0) - (one.heard_s_ago || 0),
  };

  function update() {
    const members = membersOf(app.model).slice();
    const newest = new Map(((app.model.series || {}).recent || []).map((row) => [row.peer, row]));
    const since = app.staticReport ? 0 : Math.max(0, (Date.now() - app.model.receivedAt) / 1000);
    members.sort(orders[order]);
    const silent = members.filter((each) => each.health === "red");
    const relayed = members.filter((each) => pathOf(each, newest) === "relayed").length;
    summary.textContent = members.length ? `${plural(members.length, "member")}, ${silent.length ? listed(silent.slice(0, 3).map((each) => short(each.peer_name))) + " silent" : "none silent"}, ${relayed} reached through a relay. RTT is as measured here.` : "No members are known yet.";
    const columns = [["peer", false], ["role", false], ["state", false], ["tokens/s", true], ["accepted", true], ["last heard", true], ["path", false], ["RTT", true], ["device", false], ["version", false]];
    const rows = members.slice(0, ROWS_MAX).map((each) => {
      const row = newest.get(each.peer) || {};
      return [
        peerLabel(each.peer_name, each.peer), short(each.role, 12) || "–", stateCell(each), count(each.tokens_per_s && Math.round(each.tokens_per_s)), count(each.tokens),
        known(each.heard_s_ago) ? age(each.heard_s_ago + since) : "–", pathOf(each, newest) || "–", known(each.rtt_ms) ? `${Math.round(each.rtt_ms)} ms` : "–", short(each.device || row.device, 16) || "–", short(each.version || row.version, 16) || "–",
      ];
    });
    show(place, scrolling("Peers", withClass(table("Peers", columns, rows), "stacks")));
  }
  return update;
}

function withClass(element, name) {
  element.classList.add(name);
  return element;
}

// Replace a table, and keep where its reader has scrolled to.
function show(place, region) {
  const before = place.firstElementChild;
  const [left, top, focused] = before ? [before.scrollLeft, before.scrollTop, before === document.activeElement] : [0, 0, false];
  place.replaceChildren(region);
  region.scrollLeft = left;
  region.scrollTop = top;
  if (focused) region.focus();
}

function pathOf(member, newest) {
  return short(member.path || (newest.get(member.peer) || {}).path, 12);
}

function stateCell(member) {
  const [sign, words] = HEALTH_WORDS[member.health] || ["○", "unknown"];
  return h("span", {}, h("span", { class: "health " + (HEALTH_WORDS[member.health] ? member.health : ""), "aria-hidden": "true" }, sign), h("span", { class: "hidden" }, words + ": "), clean(member.state, 60));
}

export function mountContributors(app, section) {
  let span = "all";
  const spans = choice("Time span", [["day", "24 h"], ["week", "7 d"], ["all", "all"]], span, (value) => {
    span = value;
    update();
  });
  const summary = h("p", { class: "summary" });
  const place = h("div");
  const rule = h("p", { class: "muted" }, "A token counts once, when a quorum of members has certified the outer step that it was trained in.");
  section.append(h("div", { class: "tools" }, spans), summary, place, rule);

  function update() {
    const contributors = (app.model.series || {}).contributors || {};
    const rows = ((Array.isArray(contributors) ? contributors : contributors[span]) || []).filter((each) => each.tokens > 0);
    const total = rows.reduce((sum, each) => sum + each.tokens, 0);
    summary.textContent = rows.length ? `${plural(rows.length, "peer")} contributed ${count(total)} tokens; the largest share is ${percent(rows[0].share)}.` : "No certified contribution in this time span.";
    const top = rows.length ? rows[0].tokens : 1;
    show(place, scrolling("Contributors", table("Contributors", [["peer", false], ["tokens", true], ["outer steps", true], ["share", true], ["", false]], rows.slice(0, ROWS_MAX).map((each) => [
      peerLabel(each.name || app.model.names.get(each.peer), each.peer), count(each.tokens), count(each.steps), percent(each.share), share(each.tokens / top),
    ]))));
  }
  return update;
}

function share(fraction) {
  const inner = h("span");
  inner.style.width = (100 * Math.min(1, Math.max(0, fraction))).toFixed(1) + "%";
  return h("span", { class: "share", "aria-hidden": "true" }, inner);
}

export function mountSnapshots(app, section) {
  const summary = h("p", { class: "summary" });
  const place = h("div");
  section.append(summary, place, h("p", { class: "muted" }, "Check this page's numbers, from the first signature on: ", code("p2ptrain verify"), "."));
  return () => {
    const snapshots = ((app.model.state || {}).snapshots || []).slice(0, 50);
    const newest = snapshots[0];
    summary.textContent = newest ? `The newest snapshot is of outer step ${newest.step}; ${known(newest.copies) ? newest.copies : "an unknown number of"} copies of it are online.` : "There is no certified snapshot yet.";
    if (!newest) return place.replaceChildren();
    show(place, scrolling("Snapshots", withClass(table("Snapshots", [["step", true], ["tokens", true], ["loss", true], ["copies", true], ["digest", false], ["signed by", false]], snapshots.map((each) => [
      count(each.step), count(each.tokens), fixed(each.loss, 3), known(each.copies) ? String(each.copies) : "–", code(short(each.digest, 12)), signers(each.signers),
    ])), "stacks")));
  };
}

function signers(names) {
  const all = Array.isArray(names) ? names : [];
  const rest = all.length - 4;
  return h("bdi", {}, all.slice(0, 4).map((each) => short(each, 24)).join(", ") + (rest > 0 ? ` and ${rest} more` : ""));
}
