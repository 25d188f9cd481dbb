// The numbers and lanes that the sections show.

import assert from "node:assert/strict";
import test from "node:test";
import { pieces, totalMs, waitedFor, waterfall, waterfallSentence } from "../../../p2ptrain/web/static/source/lanes.mjs";
import { exchanges, healthByPeer, heldOut, quantile, ringOf, stackedThroughput, stateName, timeLeft } from "../../../p2ptrain/web/static/source/numbers.mjs";
import { qrMatrix } from "../../../p2ptrain/web/static/source/qr.mjs";

function row(step, peer, train, more = {}) {
  return { step, peer, train_ms: train, data_wait_ms: 0, wait_ms: 0, exchange_ms: 1000, fetch_ms: 0, apply_ms: 500, bytes_up: 10, ...more };
}

const SERIES = {
  steps: { step: [1, 2, 3], time: [0, 100, 200], held_out: [3.5, null, 3.1] },
  recent: [row(2, "a", 50_000), row(2, "b", 80_000), row(3, "a", 50_000), row(3, "b", 90_000), row(3, "c", 60_000, { exchange_ms: 4000 })],
};

test("quantiles lie between values", () => {
  assert.deepEqual([quantile([3, 1, 2], 0.5), quantile([1, 2], 0.75), quantile([null], 0.5)], [2, 1.75, null]);
});

test("the time left is the median step, and its spread half the quartiles' distance", () => {
  const steps = { step: [1, 2, 3, 4], time: [0, 10, 30, 40] };
  assert.deepEqual(timeLeft({ steps }, 10), { seconds: 60, spread: 15, stepSeconds: 10 });
  assert.equal(timeLeft({ steps }, 4), null);
  assert.equal(timeLeft(null, 10), null);
});

test("the change of the held-out loss covers a day or the whole history", () => {
  const { loss, step, change, seconds } = heldOut(SERIES);
  assert.deepEqual([loss, step, change.toFixed(1), seconds], [3.1, 3, "-0.4", 200]);
});

test("the waterfall has the slowest peers and a median lane", () => {
  const found = waterfall(SERIES, 2);
  assert.deepEqual(found.lanes.map((lane) => lane.peer), ["b", "c"]);
  assert.deepEqual([found.hidden, found.middle.cells[1].train_ms], [1, 60_000]);
  assert.deepEqual(found.steps, [{ step: 2, seconds: 100 }, { step: 3, seconds: 100 }]);
});

test("the pieces of a lane are to scale, and a missing report is down", () => {
  const found = waterfall(SERIES, 5);
  const lane = found.all.find((each) => each.peer === "c");
  const drawn = pieces(lane, found.steps).map(({ part, x, width }) => [part, x.toFixed(3), width.toFixed(3)]);
  assert.deepEqual(drawn, [["down", "0.000", "0.500"], ["train", "0.500", "0.300"], ["exchange", "0.800", "0.020"], ["apply", "0.820", "0.003"], ["down", "0.823", "0.177"]]);
  assert.equal(totalMs(lane.cells[1]), 64_500);
});

test("a cell that is longer than its step stays inside it", () => {
  const long = { steps: SERIES.steps, recent: [row(2, "a", 300_000), row(2, "b", 10_000)] };
  const found = waterfall(long, 5);
  const end = pieces(found.all[0], found.steps).pop();
  assert.ok(end.x + end.width <= 1.0000001);
});

test("a peer that is ready hardly later than the others keeps nobody waiting", () => {
  const row = (step, peer, ms) => ({ step, peer, train_ms: ms, wait_ms: 1000, exchange_ms: 100 });
  const recent = [1, 2].flatMap((step) => [row(step, "a", 5000), row(step, "b", 5024), row(step, "c", 4990)]);
  const found = waterfall({ recent, steps: { step: [1, 2], time: [0, 7] } }, 5);
  assert.equal(waitedFor(found.all, 1), null);
  assert.equal(waterfallSentence(found, () => "calm-fox"), "In the last 2 outer steps, no peer kept the others waiting.");
});

test("the others waited for the peer that was ready last", () => {
  const found = waterfall(SERIES, 5);
  const slow = waitedFor(found.all, 1);
  assert.deepEqual([slow.row.peer, slow.aheadMs], ["b", 35_000]);
  assert.equal(waterfallSentence(found, () => "calm-fox"), "In 2 of the last 2 outer steps, calm-fox was ready last, usually 33 s after the median peer.");
});

test("exchanges name the slowest peer", () => {
  const newest = exchanges(SERIES).pop();
  assert.deepEqual([newest.p50, newest.slowest.peer, newest.bytes], [1, "c", 30]);
});

test("only a peer that is far from the others stands out", () => {
  const recent = ["a", "b", "c", "d", "e"].map((peer, at) => ({ step: 1, peer, cosine: 0.6 + at / 1000 }));
  recent.push({ step: 1, peer: "f", cosine: 0.1 });
  const far = healthByPeer({ recent }).filter((each) => each.cosine.far);
  assert.deepEqual(far.map((each) => each.peer), ["f"]);
});

test("throughput beyond the largest peers is summed", () => {
  const throughput = { step: [1, 2], by_peer: { a: [5, 5], b: [1, null], c: [2, 2] } };
  assert.deepEqual(stackedThroughput({ throughput }, 1), { step: [1, 2], peers: ["a"], lines: [[5, 5]], rest: [3, 2], others: 2 });
  throughput.by_peer.rest = [10, 10];
  const summed = stackedThroughput({ throughput }, 1);
  assert.deepEqual([summed.peers, summed.rest, summed.others], [["a"], [13, 12], null]);
});

test("the words of the status give the ring", () => {
  const averaging = "split, in the order calm-fox, brave-otter; two slow uplinks";
  assert.deepEqual(ringOf({ averaging }), { schedule: "split", names: ["calm-fox", "brave-otter"], reason: "two slow uplinks" });
  assert.equal(ringOf({ averaging: "" }), null);
  assert.equal(stateName("training (inner 37/100)"), "training");
  assert.equal(stateName("paused: on battery"), "paused");
});

test("a QR code has its finder patterns, and a text that is too long has none", () => {
  const matrix = qrMatrix("p2ptrain:1abc");
  assert.equal(matrix.length, 21);
  for (const [x, y] of [[0, 0], [14, 0], [0, 14]]) {
    const ring = Array.from({ length: 7 }, (_, at) => matrix[y][x + at] && matrix[y + 6][x + at] && matrix[y + at][x] && matrix[y + at][x + 6]);
    assert.deepEqual(ring, new Array(7).fill(true));
  }
  assert.equal(qrMatrix("x".repeat(859)), null);
  assert.equal(qrMatrix("x".repeat(858)).length, 97);
});
