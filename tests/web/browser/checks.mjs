// Speed, accessibility, keyboard, and narrow screens.

import { median, open, openEverything } from "./setting.mjs";

const PAINT_MS_MAX = 300;
const LOADS = 9;

export async function speed(here, browser) {
  const url = await here.serve();
  const paints = [];
  const charts = [];
  const blanks = [];
  for (let turn = 0; turn < LOADS; turn++) {
    const { page, complaints, close } = await open(browser, url + "/");
    const [paint, chart] = await page.evaluate(() => [performance.getEntriesByName("first-contentful-paint")[0].startTime, performance.now()]);
    blanks.push(Math.round(await blankPaint(browser)));
    paints.push(Math.round(paint));
    charts.push(Math.round(chart));
    if (turn === 0) here.report("complaints of the browser, its policy included", complaints, [], complaints.length === 0);
    await close();
  }
  // Other processes can only add to the time, so the fastest load tells the page's own part.
  const fastest = Math.min(...paints);
  here.report("first paint in ms, fastest load", fastest, `<= ${PAINT_MS_MAX}`, fastest <= PAINT_MS_MAX, { all: paints, empty_page: blanks });
  const computing = [];
  for (let turn = 0; turn < LOADS; turn++) computing.push(await computedUntilPaint(browser, url + "/"));
  const least = Math.min(...computing);
  here.report("processor time of the page's thread until the first paint in ms", least, `<= ${PAINT_MS_MAX}`, least <= PAINT_MS_MAX, { all: computing });
  here.report("first chart in ms, for information", median(charts), "", true, { all: charts });
  const { page, close } = await open(browser, url + "/");
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const busy = async () => (await session.send("Performance.getMetrics")).metrics.find((each) => each.name === "TaskDuration").value;
  const before = await busy();
  await page.waitForTimeout(10000);
  const share = (await busy()) - before;
  here.report("main thread of an open page, in % of a core", Number((10 * share).toFixed(1)), "<= 5", share <= 0.5);
  await close();
}

// The first paint of a page with one word: the part that is the browser's and the machine's.
async function blankPaint(browser) {
  const page = await browser.newPage();
  await page.goto("data:text/html,<p>word");
  await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length);
  const found = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
  await page.close();
  return found;
}

// Unlike the time of a clock, this depends little on what else the machine does.
async function computedUntilPaint(browser, url) {
  const page = await browser.newPage();
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  await page.goto(url, { waitUntil: "commit" });
  await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length);
  const { metrics } = await session.send("Performance.getMetrics");
  await page.close();
  return Math.round(1000 * metrics.find((each) => each.name === "TaskDuration").value);
}

export async function access(here, browser) {
  const url = await here.serve();
  for (const [name, view] of Object.entries({
    light: {},
    dark: { scheme: "dark" },
    "360 px": { width: 360, height: 740 },
    "reduced motion": { motion: "reduce" },
  })) {
    const { page, close } = await open(browser, url + "/#token=made-token", view);
    await openEverything(page);
    const sections = await page.evaluate(() => Array.from(document.querySelectorAll("main > section:not([hidden])"), (each) => each.id));
    const found = await serious(here, page);
    here.report(`axe-core: serious findings, ${name}`, found, [], found.length === 0, { sections: sections.length });
    if (view.width) {
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      here.report("width of the page at 360 px", width, "<= 360", width <= 360);
    }
    await close();
  }
  await keyboard(here, browser, url);
}

export async function serious(here, page) {
  await page.evaluate(here.axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations
    .filter((each) => each.impact === "serious" || each.impact === "critical")
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.target.join(" ")).join("; ")}`);
}

// Everything that can be used is reached by the tab key, and shows that it has the focus. Buttons of
// a group with arrow keys count as one.
async function keyboard(here, browser, url) {
  const { page, close } = await open(browser, url + "/#token=made-token");
  const wanted = await page.evaluate(() => {
    const all = document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']");
    const usable = Array.from(all).filter((each) => each.checkVisibility() && !each.disabled && each.tabIndex >= 0);
    usable.forEach((each, at) => (each.dataset.check = String(at)));
    return usable.length;
  });
  const seen = new Set();
  let unseen = 0;
  for (let turn = 0; turn < wanted + 40; turn++) {
    await page.keyboard.press("Tab");
    const [mark, outlined] = await page.evaluate(() => {
      const each = document.activeElement;
      return [each.dataset.check, getComputedStyle(each).outlineStyle !== "none"];
    });
    if (mark !== undefined) seen.add(mark);
    if (mark !== undefined && !outlined) unseen += 1;
  }
  // Tables are made anew when a peer's state changes, and lose the mark; five may be missing.
  here.report("elements reached by keyboard", seen.size, `>= ${wanted - 5}`, seen.size >= wanted - 5 && unseen === 0, { without_focus_ring: unseen });
  const before = await page.textContent("#waterfall .details");
  await page.focus("#waterfall .steps button[aria-pressed='true']");
  await page.keyboard.press("ArrowLeft");
  const after = await page.textContent("#waterfall .details");
  here.report("an arrow key shows another outer step", before !== after, true, before !== after);
  await close();
}
