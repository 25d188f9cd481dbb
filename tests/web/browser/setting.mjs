// A browser, servers with made histories, and the lines that the checks print.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";

// Chromium must not look up foreign hosts by itself; the sandbox needs rights that root in a
// container does not have.
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export function setting(modules, chromium, python) {
  const require = createRequire(modules + "/");
  const { chromium: driver } = require("playwright-core");
  const axe = require("axe-core").source;
  const started = [];
  let failed = 0;

  // Start a server. Return its address without the final slash.
  function serve(...options) {
    const child = spawn(python, ["-m", "tests.web.harness.page_server", "--port", "0", ...options], { stdio: ["ignore", "pipe", "inherit"] });
    started.push(child);
    return new Promise((resolve, reject) => {
      child.stdout.once("data", (text) => resolve(String(text).trim().replace(/\/$/, "")));
      child.once("exit", (status) => reject(new Error(`the server ended with ${status}`)));
    });
  }

  function report(measure, value, required, ok, more = {}) {
    if (!ok) failed += 1;
    process.stdout.write(JSON.stringify({ measure, value, required, ok, ...more }) + "\n");
  }

  return {
    axe,
    serve,
    report,
    browser: () => driver.launch({ executablePath: chromium, args: FLAGS }),
    end() {
      for (const each of started) each.kill();
      return failed;
    },
  };
}

// Open the page, and collect everything that the browser complains about.
export async function open(browser, url, { width = 1280, height = 900, scheme = "light", motion = "no-preference" } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion: motion });
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
  });
  await page.goto(url);
  await page.waitForSelector("#loss canvas");
  return { page, complaints, close: () => context.close() };
}

export async function openEverything(page) {
  await page.evaluate(() => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
  await page.waitForTimeout(600);
}

export function median(values) {
  return values.slice().sort((one, other) => one - other)[Math.floor(values.length / 2)];
}
