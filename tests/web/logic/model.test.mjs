// How messages change the page's copy of the data.

import assert from "node:assert/strict";
import test from "node:test";
import { dataAge, emptyModel, merged, nameOf, takeEvents, takeSeries, takeState, takeStep } from "../../../p2ptrain/web/static/source/model.mjs";

test("a patch changes fields, removes nulls, and reaches items of arrays", () => {
  const before = { a: 1, b: { c: 2, d: 3 }, list: [{ x: 1, y: 1 }, { x: 2, y: 2 }] };
  const after = merged(before, { a: null, b: { c: 5 }, list: { 1: { x: 9 }, 7: { x: 0 } } });
  assert.deepEqual(after, { b: { c: 5, d: 3 }, list: [{ x: 1, y: 1 }, { x: 9, y: 2 }] });
  assert.deepEqual(before.list[1], { x: 2, y: 2 });
  assert.deepEqual(merged({ list: [1, 2] }, { list: [3] }), { list: [3] });
});

test("a patch cannot reach the prototype", () => {
  merged({}, JSON.parse('{"__proto__": {"owned": true}}'));
  assert.equal({}.owned, undefined);
});

test("a patch of another state is refused, and a whole state is taken", () => {
  const model = emptyModel();
  assert.equal(takeState(model, { serial: 2, base: 1, patch: {} }, 0), false);
  assert.equal(takeState(model, { serial: 4, heard_s_ago: 1, sentence: "a" }, 1000), true);
  assert.equal(takeState(model, { serial: 5, base: 3, patch: { sentence: "b" } }, 2000), false);
  assert.equal(takeState(model, { serial: 5, base: 4, patch: { sentence: "c" } }, 3000), true);
  assert.deepEqual([model.state.sentence, model.serial, dataAge(model, 13_000)], ["c", 5, 11]);
});

test("an outer step extends every column once", () => {
  const model = emptyModel();
  takeSeries(model, {
    steps: { step: [1, 2], time: [100, 190], loss: [3, 2.9] },
    recent: [{ step: 1, peer: "a" }, { step: 2, peer: "a" }],
    throughput: { step: [1, 2], by_peer: { a: [10, 10] } },
    contributors: { all: [{ peer: "a", name: "calm-fox", tokens: 900, steps: 2, share: 1 }] },
  });
  const step = { step: { step: 3, time: 290 }, peers: [{ step: 3, peer: "b", name: "brave-otter", tokens: 100 }] };
  takeStep(model, step);
  takeStep(model, step);
  assert.deepEqual(model.series.steps, { step: [1, 2, 3], time: [100, 190, 290], loss: [3, 2.9, null] });
  assert.deepEqual(model.series.throughput, { step: [1, 2, 3], by_peer: { a: [10, 10, 0], b: [0, 0, 1] } });
  assert.deepEqual(model.series.contributors.all.map((each) => [each.peer, each.tokens, each.share]), [["a", 900, 0.9], ["b", 100, 0.1]]);
  assert.equal(nameOf(model, "b"), "brave-otter");
});

test("a late report replaces its outer step and is not counted twice", () => {
  const model = emptyModel();
  takeSeries(model, { steps: { step: [1], loss: [3] }, recent: [], contributors: { all: [] } });
  takeStep(model, { step: { step: 2, loss: 2.5 }, peers: [{ step: 2, peer: "a", tokens: 5 }] });
  takeStep(model, { step: { step: 2, loss: 2.4 }, peers: [{ step: 2, peer: "a", tokens: 5, train_ms: 7 }] });
  assert.deepEqual(model.series.steps, { step: [1, 2], loss: [3, 2.4] });
  assert.deepEqual(model.series.recent, [{ step: 2, peer: "a", tokens: 5, train_ms: 7 }]);
  assert.equal(model.series.contributors.all[0].tokens, 5);
});

test("peers with the same name are told apart by their ids", () => {
  const model = emptyModel();
  takeSeries(model, { peers: [{ peer: "12D3KooWaaaaaa", name: "calm-fox" }, { peer: "12D3KooWbbbbbb", name: "calm-fox" }, { peer: "12D3KooWcccccc", name: "brave-otter" }] });
  assert.deepEqual(["12D3KooWaaaaaa", "12D3KooWcccccc", "12D3KooWdddddd"].map((peer) => nameOf(model, peer)), ["calm-fox …aaaa", "brave-otter", "…dddddd"]);
});

test("events are kept once, newest first, and bounded", () => {
  const model = emptyModel();
  takeEvents(model, [{ id: 1 }, { id: 3 }]);
  takeEvents(model, [{ id: 2 }, { id: 3, text: "again" }]);
  assert.deepEqual(model.events.map((each) => each.id), [3, 2, 1]);
  takeEvents(model, Array.from({ length: 3000 }, (_, id) => ({ id })));
  assert.equal(model.events.length, 1000);
});
