// Put the sections together, and show each again when its data has changed.

import { rebuildCharts } from "./chart.mjs";
import { byId, h, setText } from "./dom.mjs";
import { followFile, followNode, takeToken } from "./feed.mjs";
import { emptyModel } from "./model.mjs";
import { showAge, showHeader } from "./section_header.mjs";
import { mountJoin } from "./section_join.mjs";
import { mountLoss } from "./section_loss.mjs";
import { mountContributors, mountPeers, mountSnapshots } from "./section_peers.mjs";
import { mountActive, mountExchange, mountThroughput } from "./section_rates.mjs";
import { mountHealth, mountRing } from "./section_ring.mjs";
import { mountEvents, mountSamples } from "./section_story.mjs";
import { mountWaterfall, patterns } from "./section_waterfall.mjs";
import { mountYou } from "./section_you.mjs";

// Each section, the parts of the model that it shows, and whether a narrow screen opens it.
const SECTIONS = [
  ["loss", mountLoss, ["series", "events"], true],
  ["you", mountYou, ["state", "series"], true],
  ["waterfall", mountWaterfall, ["series"], true],
  ["throughput", mountThroughput, ["series"], false],
  ["active", mountActive, ["series", "state"], false],
  ["exchange", mountExchange, ["series"], false],
  ["peers", mountPeers, ["state"], false],
  ["ring", mountRing, ["series", "state"], false],
  ["contributors", mountContributors, ["series"], false],
  ["snapshots", mountSnapshots, ["state"], false],
  ["health", mountHealth, ["series"], false],
  ["samples", mountSamples, ["samples"], false],
  ["events", mountEvents, ["events"], false],
  ["join", mountJoin, ["state"], false],
];
// The header follows the state each second. Tables and drawings that only the state has changed
// follow more slowly: most of it is progress that the header shows too.
const STATE_MS = 1000;
const SECTIONS_MS = 5000;

function main() {
  const file = document.querySelector('meta[name="p2ptrain-data"]').content;
  const app = { model: emptyModel(), staticReport: file !== "", token: takeToken(), openedAt: Date.now(), noOlder: false };
  const stale = new Set(["state", "series", "events", "samples"]);
  const narrow = matchMedia("(max-width: 700px)").matches;
  document.body.classList.toggle("report", app.staticReport);
  let sections = [];
  let asked = 0;
  let shownAt = 0;
  let sectionsAt = 0;

  // Draw at most once per frame, and at most once per second if only the state has changed.
  app.changed = (what) => {
    stale.add(what);
    if (asked) return;
    const soon = what === "state" ? Math.max(0, STATE_MS - (performance.now() - shownAt)) : 0;
    asked = setTimeout(() => {
      asked = 0;
      shownAt = performance.now();
      if (!document.hidden) showAll();
    }, soon);
  };
  function showAll() {
    showHeader(app);
    const now = performance.now();
    if (now - sectionsAt < SECTIONS_MS && stale.size === 1 && stale.has("state")) return;
    for (const each of sections) if (each.needs.some((what) => stale.has(what))) each.stale = true;
    stale.clear();
    sectionsAt = now;
    for (const each of sections) each.show();
  }
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) showAll();
  });
  followTheme(() => rebuildCharts());
  // The browser paints the frame of the page first. A hidden page is not painted.
  whenPainted(() => {
    // On a narrow screen, the user's own node comes first, for the keyboard too.
    if (narrow) byId("main").prepend(byId("you"));
    document.body.prepend(patterns());
    sections = SECTIONS.map(([id, mount, needs, first]) => section(app, id, mount, needs, !narrow || first));
    showAll();
    setInterval(() => showAge(app), 1000);
  });
  if (app.staticReport) followFile(app.model, file, app.changed);
  else followNode(app.model, app.changed);
}

function whenPainted(act) {
  let done = false;
  const once = () => {
    if (!done) act();
    done = true;
  };
  requestAnimationFrame(() => setTimeout(once));
  setTimeout(once, 250);
}

// A section can be closed. While it is closed, it is not drawn.
function section(app, id, mount, needs, open) {
  const root = byId(id);
  const title = root.querySelector("h2");
  const inside = h("div", { class: "inside" });
  const frame = h("details", { open }, h("summary", {}, title), inside);
  root.append(frame);
  const draw = mount(app, inside);
  const self = { needs, stale: true };
  // The section about the user's node hides itself as a whole.
  self.show = () => {
    if (id === "you") {
      root.hidden = !(app.model.state && app.model.state.you);
      document.body.classList.toggle("no-you", root.hidden);
    }
    if (!self.stale || !frame.open) return;
    self.stale = false;
    draw();
  };
  frame.addEventListener("toggle", () => self.show());
  return self;
}

function followTheme(changed) {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "";
  try {
    chosen = localStorage.getItem("p2ptrain-theme") || "";
  } catch {
    // Without storage the choice lasts until the page is loaded again.
  }
  const isDark = () => (chosen ? chosen === "dark" : system.matches);
  const apply = () => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    setText(button, isDark() ? "Light" : "Dark");
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
  };
  apply();
  button.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("p2ptrain-theme", chosen);
    } catch {
      // See above.
    }
    apply();
    changed();
  });
  system.addEventListener("change", () => {
    apply();
    changed();
  });
}

main();
