// What the page does when data changes, when it stops, and when peers are hostile.

import { open, openEverything } from "./setting.mjs";
import { serious } from "./checks.mjs";

const STALE = /^No data for \d+ s; this page shows the state of \d\d:\d\d:\d\d$/;

export async function freshness(here, browser) {
  const url = await here.serve("--step-s", "4");
  const { page, close } = await open(browser, url + "/");
  const late = [];
  for (let turn = 0; turn < 3; turn++) {
    const before = await page.textContent("#waterfall .steps button:last-child");
    await page.waitForFunction((text) => document.querySelector("#waterfall .steps").lastChild.textContent !== text, before, { polling: 50, timeout: 20000 });
    const seen = Date.now() / 1000;
    const { advanced } = await (await fetch(url + "/made/loud")).json();
    late.push(Number((seen - advanced).toFixed(2)));
  }
  here.report("seconds from a commit to the page", Math.max(...late), "<= 1", Math.max(...late) <= 1, { all: late });
  await fetch(url + "/made/silent");
  await page.waitForSelector("body.stale", { timeout: 20000 });
  const words = await page.textContent("#stale");
  here.report("the page says that its data is old", words, String(STALE), STALE.test(words));
  const found = await serious(here, page);
  here.report("axe-core: serious findings, greyed out", found, [], found.length === 0);
  await fetch(url + "/made/loud");
  await page.waitForSelector("body:not(.stale)", { timeout: 20000 });
  here.report("the page is live again by itself", true, true, true);
  await close();
}

export async function hostile(here, browser) {
  const url = await here.serve("--hostile");
  for (const width of [1280, 360]) {
    const { page, complaints, close } = await open(browser, url + "/", { width });
    await openEverything(page);
    await page.waitForTimeout(1500);
    const facts = await page.evaluate(() => ({
      title: document.title,
      images: document.querySelectorAll("img, iframe, object, embed").length,
      scripts: document.scripts.length,
      // Neither marks that turn text around, nor control characters, nor texts of a megabyte.
      hidden: /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(document.body.textContent),
      long: /\S{1300}/.test(document.querySelector("main").textContent.replace(/p2ptrain:\S+/g, "")),
      wide: document.documentElement.scrollWidth > innerWidth,
    }));
    const good = { title: "made-up-150m · p2ptrain", images: 0, scripts: 1, hidden: false, long: false, wide: false };
    const ok = JSON.stringify(facts) === JSON.stringify(good) && complaints.length === 0;
    here.report(`hostile names and texts at ${width} px`, facts, good, ok, { complaints });
    await close();
  }
}

export async function steering(here, browser) {
  const url = await here.serve();
  const without = await open(browser, url + "/");
  const buttons = await without.page.locator("#you .controls button").count();
  here.report("buttons that control the node, without a token", buttons, 0, buttons === 0);
  await without.close();
  const { page, close } = await open(browser, url + "/#token=made-token");
  await page.waitForSelector("#you .controls button");
  const address = page.url();
  here.report("the token leaves the address bar", address, url + "/", address === url + "/");
  await page.selectOption("#you select", "7200");
  await page.click("#you >> text=Pause");
  await page.fill("#you input", "20Mbit");
  await page.click("#you >> text=Limit upload");
  await page.waitForFunction(() => document.querySelector("#you .answer").textContent.includes("limit"));
  const { actions } = await (await fetch(url + "/made/loud")).json();
  const wanted = ['pause {"for_s":7200}', 'limit {"up":"20Mbit"}'];
  here.report("actions that the node received", actions, wanted, JSON.stringify(actions) === JSON.stringify(wanted));
  await close();
}

export async function report(here, browser) {
  const url = await here.serve("--report");
  const asked = [];
  const context = await browser.newContext();
  const page = await context.newPage();
  page.on("request", (each) => asked.push(new URL(each.url()).pathname));
  await page.goto(url + "/");
  await page.waitForSelector("#ring svg circle");
  await page.waitForTimeout(5000);
  here.report("requests of a static report in five seconds", asked, ["/", "/data.json"], asked.join() === "/,/data.json");
  const words = await page.textContent("#fresh-text");
  here.report("a static report says when it was made", words, "report of …", words.startsWith("report of "));
  await context.close();
}
