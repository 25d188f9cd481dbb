// Your node: its lane, what it contributed and cost, and the buttons that control it.

import { chart, ink } from "./chart.mjs";
import { h, setText } from "./dom.mjs";
import { act } from "./feed.mjs";
import { last, median } from "./numbers.mjs";
import { ownLane, partsSentence } from "./section_waterfall.mjs";
import { bytes, clean, count, duration, known, percent, short, tick } from "./text.mjs";

export function mountYou(app, section) {
  const facts = h("dl", { class: "facts" });
  const lane = h("div", { class: "own-lane", role: "img" });
  const laneWords = h("p", { class: "muted" });
  const answer = h("p", { role: "status", class: "answer" });
  const controls = h("div", { class: "controls" });
  const rate = h("div", { class: "own-rate", role: "img" });
  const rateWords = h("p", { class: "muted" });
  section.append(facts, lane, laneWords, rateWords, rate, controls, answer);
  const plot = chart(rate, {
    height: 130, left: 40, x: String, y: tick, range: (_, low, high) => [0, (high || 1) * 1.1],
    lines: () => [{ label: "your tokens/s", ink: ink("c1"), width: 1.25, fill: ink("c1-soft") }],
  });
  let withButtons = null;

  function update() {
    const state = app.model.state;
    if (!state || !state.you) return;
    facts.replaceChildren(...factsOf(state).map(([label, value, note]) => h("div", {}, h("dt", {}, label), h("dd", {}, h("b", {}, value), " ", h("span", { class: "muted" }, note || "")))));
    showLane(state.status);
    showRate(state.status);
    const usable = Boolean(state.can_act && app.token);
    if (usable !== withButtons) showControls((withButtons = usable));
  }

  function showLane(status) {
    const width = lane.clientWidth;
    if (!app.model.series || !status || !width) return;
    const found = ownLane(app.model.series, status.peer, width);
    lane.replaceChildren(found ? found.root : "");
    const words = found ? partsSentence(found.newest) : "";
    lane.setAttribute("aria-label", words ? `Your last outer steps. The newest: ${words}` : "No outer step of yours is known yet");
    setText(laneWords, words ? `Your newest outer step: ${words}.` : "Your node has not reported an outer step yet.");
  }

  function showRate(status) {
    const throughput = (app.model.series || {}).throughput || {};
    const values = status && throughput.by_peer && throughput.by_peer[status.peer];
    rate.hidden = rateWords.hidden = !values;
    if (!values) return;
    plot.show([throughput.step, values]);
    const words = `In the newest outer step, your node contributed ${count(Math.round(last(values)))} accepted tokens per second; its median is ${count(Math.round(median(values)))}.`;
    setText(rateWords, words);
    rate.setAttribute("aria-label", words);
  }

  function showControls(usable) {
    if (!usable) {
      controls.replaceChildren(app.staticReport ? "" : h("p", { class: "muted" }, "To pause or limit your node on this page, open it with ", h("code", {}, "p2ptrain open"), "."));
      return;
    }
    const lasts = h("select", { "aria-label": "Length of the pause" }, [["", "until you resume"], ["1800", "for 30 min"], ["7200", "for 2 h"], ["28800", "for 8 h"]].map(([value, words]) => h("option", { value }, words)));
    const limit = h("input", { "aria-label": "Limit of the upload, for example 20Mbit", placeholder: "20Mbit", size: 8, maxlength: 16 });
    controls.replaceChildren(
      h("div", {}, button("Pause", () => send("pause", lasts.value ? { for_s: Number(lasts.value) } : {})), lasts, button("Resume", () => send("resume", {}))),
      h("div", {}, button("Limit upload", () => limit.value.trim() && send("limit", { up: limit.value.trim() })), limit, button("Finish and leave", () => send("finish", {}))),
    );
  }

  async function send(action, body) {
    setText(answer, "Asking your node …");
    setText(answer, clean(await act(app.token, action, body), 300));
  }
  return update;
}

function button(words, onclick) {
  return h("button", { type: "button", class: "button", onclick }, words);
}

function factsOf({ you, status }) {
  return [
    ["Accepted tokens", count(you.tokens), known(you.share) ? `${percent(you.share)} of the run` : ""],
    ["Role", short((status || {}).role, 12) || "not a member", ""],
    ["Cost in 24 h", `${bytes(you.bytes_up_day)} up`, known(you.bytes_down_day) ? `${bytes(you.bytes_down_day)} down` : ""],
    ["At work in 24 h", known(you.hours) ? duration(you.hours * 3600) : "–", ""],
  ];
}
