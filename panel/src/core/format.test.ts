import assert from "node:assert/strict";
import { test } from "node:test";
import {
  formatBytes,
  formatCount,
  formatDuration,
  formatInteger,
  formatPercent,
  formatRate,
  formatTime,
  plural,
} from "./format";

test("bytes have three digits and binary units", () => {
  assert.equal(formatBytes(0), "0 B");
  assert.equal(formatBytes(999), "999 B");
  assert.equal(formatBytes(1000), "0.98 KiB");
  assert.equal(formatBytes(1024), "1.00 KiB");
  assert.equal(formatBytes(12.34 * 2 ** 30), "12.3 GiB");
  assert.equal(formatBytes(999.6 * 2 ** 20), "0.98 GiB");
  assert.equal(formatBytes(null), "–");
});

test("counts go over to the next unit before they get a fourth digit", () => {
  assert.equal(formatCount(999), "999");
  assert.equal(formatCount(1000), "1.00 k");
  assert.equal(formatCount(99_950), "100 k");
  assert.equal(formatCount(999_500), "1.00 M");
  assert.equal(formatInteger(1_234_567), "1,234,567");
});

test("durations never say 60 seconds or 1000 ms", () => {
  assert.equal(formatDuration(0.25), "0.3 ms");
  assert.equal(formatDuration(999.4), "999 ms");
  assert.equal(formatDuration(999.6), "1.00 s");
  assert.equal(formatDuration(59_949), "59.9 s");
  assert.equal(formatDuration(59_960), "1 min 00 s");
  assert.equal(formatDuration(3_599_600), "1 h 00 min");
  assert.equal(formatDuration(90_000_000), "1 d 01 h");
  assert.equal(formatDuration(undefined), "–");
  assert.equal(formatDuration(-5), "0 ms");
});

test("rates and shares", () => {
  assert.equal(formatRate(0, "tok"), "0 tok/s");
  assert.equal(formatRate(12.34, "tok"), "12.3 tok/s");
  assert.equal(formatRate(12_340), "12.3 k/s");
  assert.equal(formatPercent(0.876), "88 %");
  assert.equal(plural(1, "agent"), "1 agent");
  assert.equal(plural(2000, "agent"), "2,000 agents");
});

test("a time is in the viewer's zone, and one that is none is unknown", () => {
  assert.equal(formatTime(new Date(2026, 1, 3, 4, 5, 6, 7)), "04:05:06");
  assert.equal(formatTime(new Date(2026, 1, 3, 4, 5, 6, 7), true), "04:05:06.007");
  assert.equal(formatTime(new Date(Number.NaN)), "–");
});
