import assert from "node:assert/strict";
import { test } from "node:test";
import { axisStep, following, KEEP_MS, MAX_SPAN_MS, MIN_SPAN_MS, panned, paused, revealing, settled, zoomed, type Viewport } from "./viewport";

const NOW = 10_000_000;
const live = settled({ end_ms: 0, span_ms: 60_000, follows: true }, NOW);

test("a viewport that follows has now near its right edge", () => {
  assert.ok(live.end_ms > NOW && live.end_ms - live.span_ms < NOW);
  assert.equal(settled(live, NOW + 500).end_ms, live.end_ms + 500);
});

test("going back stops to follow, coming to now begins to", () => {
  const back = panned(live, -5_000, NOW);
  assert.equal(back.follows, false);
  assert.equal(settled(back, NOW + 9_000).end_ms, back.end_ms);
  assert.equal(panned(back, 4_000, NOW).follows, false);
  assert.equal(panned(back, 5_000, NOW).follows, true);
});

test("there is nothing after now, and nothing before what is kept", () => {
  assert.equal(panned(live, 1e9, NOW).end_ms, live.end_ms);
  const oldest = panned(live, -1e9, NOW);
  assert.equal(oldest.end_ms - oldest.span_ms, NOW - KEEP_MS);
});

test("zoom keeps the time under the pointer, and has limits", () => {
  const still = panned(paused(live), -120_000, NOW);
  const at = (view: Viewport, fraction: number): number => view.end_ms - view.span_ms * (1 - fraction);
  for (const factor of [0.5, 1.7]) {
    assert.ok(Math.abs(at(zoomed(still, factor, 0.3, NOW), 0.3) - at(still, 0.3)) < 1e-3);
  }
  assert.equal(zoomed(live, 1e-9, 0.5, NOW).span_ms, MIN_SPAN_MS);
  assert.equal(zoomed(live, 1e9, 0.5, NOW).span_ms, MAX_SPAN_MS);
  assert.equal(zoomed(live, 0.5, 0.5, NOW).follows, true);
});

test("pause and follow are each other's opposite", () => {
  assert.equal(paused(live).follows, false);
  assert.deepEqual(following(paused(live), NOW), live);
});

test("what is selected comes into sight, and nothing moves if it is", () => {
  assert.equal(revealing(live, NOW - 1_000, NOW - 500, NOW), live);
  const old = revealing(live, NOW - 200_000, NOW - 199_000, NOW);
  assert.ok(old.end_ms - old.span_ms < NOW - 200_000 && old.end_ms > NOW - 199_000);
  const again = revealing(old, NOW - 100_000, NOW - 99_000, NOW);
  assert.ok(again.end_ms - again.span_ms < NOW - 100_000 && again.end_ms > NOW - 99_000);
});

test("marks of the axis have room", () => {
  for (const span of [2_000, 10_000, 60_000, 300_000, 600_000]) {
    const step = axisStep(span, 900, 88);
    assert.ok((step / span) * 900 >= 88);
    assert.ok(span / step >= 2);
  }
});
