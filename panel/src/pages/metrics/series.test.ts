import assert from "node:assert/strict";
import { test } from "node:test";
import type { MetricsField, MetricsHistory, MetricsRow } from "../../types";
import { capacityOf } from "./capacity";
import { hasValues, hitRates, largest, lonely, markOf, newest, ratesOf, seriesOf, withNewest, worstOf } from "./series";

const FIELDS: MetricsField[] = [
  "start_ms",
  "requests",
  "failed",
  "ttft_p50_ms",
  "ttft_p95_ms",
  "itl_p50_ms",
  "itl_p95_ms",
  "queue_p50_ms",
  "queue_p95_ms",
  "prompt_tokens",
  "cached_tokens",
  "generated_tokens",
  "waiting_max",
  "busy_max",
  "slots",
];

function row(values: Partial<Record<MetricsField, number>>): MetricsRow {
  return FIELDS.map((field) => values[field] ?? null);
}

function history(...rows: MetricsRow[]): MetricsHistory {
  return { now_ms: 60_000, time: "2026-03-04T12:00:00.000Z", bucket_ms: 10_000, fields: FIELDS, rows };
}

test("rows become columns, and a bucket that is missing is a gap", () => {
  const series = seriesOf(history(row({ start_ms: 0, requests: 1 }), row({ start_ms: 30_000, requests: 2 })));
  assert.deepEqual(series.start_ms, [0, 10_000, 20_000, 30_000]);
  assert.deepEqual(series.columns.requests, [1, null, null, 2]);
  assert.equal(hasValues(series.columns.ttft_p50_ms), false);
});

test("the newest row replaces the last one or follows it", () => {
  const one = history(row({ start_ms: 0, requests: 1 }));
  assert.deepEqual(withNewest(one, row({ start_ms: 0, requests: 5 })).rows.length, 1);
  assert.deepEqual(withNewest(one, row({ start_ms: 10_000 })).rows.length, 2);
  assert.equal(withNewest(one, row({ start_ms: -10_000 })), one);
  const ended = withNewest(one, row({ start_ms: 0, requests: 5 }));
  assert.equal(withNewest(ended, row({ start_ms: 0, requests: 4 })), ended);
  assert.equal(withNewest(one, [1, 2]), one);
});

test("rates are per second, and the newest bucket counts for the time that it had", () => {
  const series = seriesOf(
    history(row({ start_ms: 0, generated_tokens: 100 }), row({ start_ms: 10_000, generated_tokens: 100 })),
  );
  assert.deepEqual(ratesOf(series, "generated_tokens", 18_000), [10, 12.5]);
  assert.deepEqual(ratesOf(series, "generated_tokens", 12_000), [10, null]);
  assert.deepEqual(ratesOf(series, "generated_tokens", 99_000), [10, 10]);
});

test("a hit rate needs prompts", () => {
  const series = seriesOf(
    history(
      row({ start_ms: 0, prompt_tokens: 0, cached_tokens: 0 }),
      row({ start_ms: 10_000, prompt_tokens: 10, cached_tokens: 4 }),
    ),
  );
  assert.deepEqual(hitRates(series), [null, 0.4]);
});

test("the newest value that was measured, and the largest", () => {
  const series = seriesOf(
    history(row({ start_ms: 0, ttft_p50_ms: 7 }), row({ start_ms: 10_000, ttft_p50_ms: 5 }), row({ start_ms: 20_000 })),
  );
  assert.deepEqual(newest(series, series.columns.ttft_p50_ms), { value: 5, start_ms: 10_000 });
  assert.equal(newest(series, series.columns.itl_p50_ms), null);
  assert.equal(largest(series.columns.ttft_p50_ms), 7);
});

test("capacity compares what arrives with what the slots could serve", () => {
  const at = (values: Partial<Record<MetricsField, number>>) =>
    capacityOf(seriesOf(history(row({ start_ms: 0, ...values }))));
  assert.match(at({ slots: 0 }).sentence, /no slots/);
  assert.match(at({ slots: 4, busy_max: 0, requests: 0 }).sentence, /All 4 slots are free/);
  const easy = at({ slots: 4, busy_max: 1, requests: 10, waiting_max: 0 });
  assert.equal(easy.tone, "ok");
  assert.match(easy.sentence, /25 % busy/);
  assert.match(easy.detail, /60 requests a minute arrive; the 4 slots could serve about 240/);
  const full = at({ slots: 4, busy_max: 4, requests: 10, waiting_max: 9 });
  assert.equal(full.tone, "bad");
  assert.match(full.sentence, /up to 9 waited/);
  assert.match(full.detail, /2 more slots/);
});

test("slots that came or went do not count for buckets in which they were not", () => {
  const rows = [
    row({ start_ms: 0, busy_max: 50, slots: 100, requests: 50 }),
    row({ start_ms: 10_000, busy_max: 2, slots: 4, requests: 2 }),
  ];
  assert.match(capacityOf(seriesOf(history(...rows))).sentence, /50 % busy/);
});

test("marks of an axis that are less than a minute apart differ", () => {
  const time_s = new Date(2026, 2, 4, 13, 37, 0).getTime() / 1000;
  assert.deepEqual([0, 30, 60].map((later) => markOf(time_s + later, 30)), ["13:37:00", "13:37:30", "13:38:00"]);
  assert.equal(markOf(time_s, 60), "13:37");
});

test("a value without neighbours is a point, and the worst is of a window", () => {
  assert.deepEqual(lonely([1, null, 2, 3, null, 4]), [0, 5]);
  assert.deepEqual(lonely([null, 33_800]), [1]);
  assert.deepEqual(lonely([]), []);
  assert.equal(worstOf([9, null, 3, 1], 3), 3);
  assert.equal(worstOf([9, null, null], 2), null);
});
