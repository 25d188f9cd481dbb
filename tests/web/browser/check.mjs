// Checks of the page in a browser: see scripts/check_page.

import { access, speed } from "./checks.mjs";
import { freshness, hostile, report, steering } from "./behaviour.mjs";
import { pictures } from "./pictures.mjs";
import { setting } from "./setting.mjs";

const [modules, chromium, python, ...options] = process.argv.slice(2);
const here = setting(modules, chromium, python);
const at = options.indexOf("--pictures");
const checks = at >= 0 ? [(...each) => pictures(...each, options[at + 1])] : [speed, access, freshness, hostile, steering, report];
const browser = await here.browser();
try {
  for (const check of checks) await check(here, browser);
} finally {
  await browser.close();
}
process.exit(here.end() ? 1 : 0);
