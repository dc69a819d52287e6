import assert from "node:assert/strict";
import { test } from "node:test";
import { blocksOf, Lane, type Track } from "./lane";
import type { StageKind } from "./stages";

function put(lane: Lane, start_ms: number, end_ms: number | null, kind: StageKind = "decode"): Track {
  const stages = [{ kind, start_ms, end_ms }];
  const track: Track = { id: "x", agentKey: 1, request: start_ms, view: null, placement: 0, start_ms, end_ms, stages, lane };
  lane.add(track);
  return track;
}

test("tracks are in the order of their beginnings, in whatever order they come", () => {
  const lane = new Lane();
  for (const start of [30, 10, 20]) {
    put(lane, start, start + 5);
  }
  assert.deepEqual(lane.tracks.map((track) => track.start_ms), [10, 20, 30]);
});

test("a time finds the track that is there, or the nearest within the tolerance", () => {
  const lane = new Lane();
  const one = put(lane, 10, 20);
  const other = put(lane, 30, null);
  assert.equal(lane.at(15, 0), one);
  assert.equal(lane.at(24, 4), one);
  assert.equal(lane.at(27, 4), other);
  assert.equal(lane.at(25, 4), null);
  assert.equal(lane.at(1e9, 0), other);
});

test("what ended is dropped, what goes on is not", () => {
  const lane = new Lane();
  put(lane, 10, 20);
  put(lane, 30, null);
  assert.equal(lane.dropBefore(1e9).length, 1);
  assert.equal(lane.tracks.length, 1);
});

test("blocks lie on whole pixels and never on each other's", () => {
  const lane = new Lane();
  let random = 7;
  const next = (): number => (random = (random * 16_807) % 2_147_483_647) / 2_147_483_647;
  for (let ms = 0; ms < 10_000; ) {
    const end = ms + next() * 80;
    put(lane, ms, end, next() < 0.5 ? "decode" : "prefill");
    ms = end + next() * 20;
  }
  for (const scale of [0.001, 0.01, 0.1, 1]) {
    let free = 0;
    for (const block of blocksOf(lane, 100, 9_000, 9_000, scale)) {
      assert.ok(Number.isInteger(block.left) && Number.isInteger(block.right));
      assert.ok(block.left >= free && block.right > block.left, `${block.left}..${block.right} after ${free}`);
      free = block.right;
    }
    assert.ok(free <= Math.round(8_900 * scale) + 1);
  }
});

test("a hundred thousand requests are at most as many blocks as pixels", () => {
  const lane = new Lane();
  for (let ms = 0; ms < 100_000; ms += 1) {
    put(lane, ms, ms + 0.9, ms % 2 ? "decode" : "prefill");
  }
  assert.ok(blocksOf(lane, 0, 100_000, 100_000, 0.01).length <= 1_001);
});

test("a request without a visible length has a pixel, if it is free", () => {
  const lane = new Lane();
  put(lane, 50, 50.1);
  assert.deepEqual(blocksOf(lane, 0, 100, 100, 1).map(({ left, right }) => [left, right]), [[50, 51]]);
});

test("what goes on reaches to now", () => {
  const lane = new Lane();
  put(lane, 40, null);
  assert.deepEqual(blocksOf(lane, 0, 100, 90, 1).map(({ left, right }) => [left, right]), [[40, 90]]);
});
