// Screenshots: the upper part of the page on a desktop in light and dark, and the whole at 360 px.

import { open } from "./setting.mjs";

export async function pictures(here, browser, folder) {
  const url = await here.serve();
  for (const [name, view, whole] of [
    ["page-light", { width: 1280, height: 1140 }, false],
    ["page-dark", { width: 1280, height: 1140, scheme: "dark" }, false],
    ["page-360", { width: 360, height: 1700 }, false],
  ]) {
    const { page, close } = await open(browser, url + "/#token=made-token", view);
    await page.waitForTimeout(1500);
    await page.screenshot({ path: `${folder}/${name}.png`, fullPage: whole });
    here.report(`picture ${name}`, `${folder}/${name}.png`, "", true);
    await close();
  }
}
