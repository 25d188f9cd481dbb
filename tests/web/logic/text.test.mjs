// Texts of peers become inert and short, and numbers become readable.

import assert from "node:assert/strict";
import test from "node:test";
import { bits, bytes, clean, count, duration, fixed, percent, short, small, tick } from "../../../p2ptrain/web/static/source/text.mjs";

test("marks that turn text around and control characters are replaced", () => {
  assert.equal(clean("\u202egnp.exe\u202c"), "\ufffdgnp.exe\ufffd");
  assert.equal(clean("a\u2066b\u2069c\u200f\u061c"), "a\ufffdb\ufffdc\ufffd\ufffd");
  assert.equal(clean("red\x1b[31m\x00\x07\x85"), "red\ufffd[31m\ufffd\ufffd\ufffd");
  assert.equal(clean("zero\u200bwidth\ufeff"), "zero\ufffdwidth\ufffd");
});

test("line breaks stay in a text and become spaces in a name", () => {
  assert.equal(clean("one\n\ttwo\r"), "one\n\ttwo\ufffd");
  assert.equal(short("one\n\n two"), "one  two");
});

test("texts are bounded in characters, without broken pairs", () => {
  assert.equal(clean("W".repeat(1_000_000), 10), "WWWWWWWWW…");
  assert.equal(clean("😀".repeat(30), 3), "😀😀…");
  assert.equal(clean("\ud83d"), "\ufffd");
  assert.equal(clean("tag\u{e0041}"), "tag\ufffd");
});

test("accents do not pile up over other lines", () => {
  assert.equal(clean("a" + "\u0300".repeat(400)), "a\u0300\u0300");
});

test("markup stays text, and missing values are empty", () => {
  assert.equal(clean("<b>&amp;</b>"), "<b>&amp;</b>");
  assert.equal(clean(null), "");
  assert.equal(clean(7), "7");
});

test("numbers have three digits and a unit", () => {
  const shown = [0, 7, 999, 1000, 131072, 1.4e9, 0.5, null, NaN].map(count);
  assert.deepEqual(shown, ["0", "7", "999", "1 k", "131 k", "1.40 G", "0.50", "–", "–"]);
  assert.deepEqual([1.2e9, 1e6, 100, 2.5].map(tick), ["1.2 G", "1 M", "100", "2.5"]);
  assert.deepEqual([512, 5.4e6].map(bytes), ["512 B", "5.40 MB"]);
  assert.deepEqual([bits(1.25e6), percent(0.0589), fixed(-4.851, 3)], ["10 Mbit/s", "5.9 %", "−4.851"]);
  assert.deepEqual([0.0004, 0.53, 0].map(small), ["4.0·10⁻⁴", "0.53", "0"]);
});

test("durations are in the unit that one would say", () => {
  const shown = [0.004, 1.74, 42, 119, 150, 3600, 18_420, 200_000].map(duration);
  assert.deepEqual(shown, ["4 ms", "1.7 s", "42 s", "119 s", "3 min", "1 h 00 min", "5 h 07 min", "2 d 7 h"]);
});
