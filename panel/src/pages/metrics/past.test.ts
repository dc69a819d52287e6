import assert from "node:assert/strict";
import { test } from "node:test";
import type { MetricsRange } from "../../types";
import { askedIn, isLive, moved, queryOf, seriesIn } from "./past";

function asked(text: string) {
  return askedIn(new URLSearchParams(text));
}

test("an address says what is shown, and nonsense in it is left out", () => {
  assert.equal(isLive(asked("")), true);
  assert.equal(isLive(asked("by=nobody&range=9y&from=x")), true);
  assert.deepEqual(asked("by=key"), { by: "key", last: "1h", from: null, to: null });
  assert.deepEqual(asked("from=1000&to=1030").from, null);
  for (const text of ["by=agent&range=7d", "by=key&from=1000&to=2000", "range=24h"]) {
    const query = queryOf(asked(text));
    const again = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      if (value !== null) {
        again.set(name, String(value));
      }
    }
    assert.equal(again.toString(), text);
  }
});

test("a range is moved and never goes beyond now", () => {
  const range = { begin: 1000, end: 2000 };
  assert.deepEqual(moved(range, { steps: -0.5 }, 9999), { from: 500, to: 1500 });
  assert.deepEqual(moved(range, { steps: 0.5 }, 2100), { from: 1100, to: 2100 });
  assert.deepEqual(moved(range, { times: 0.5 }, 9999), { from: 1250, to: 1750 });
  assert.deepEqual(moved(range, { times: 2 }, 2200), { from: 200, to: 2200 });
  assert.deepEqual(moved({ begin: 1000, end: 1060 }, { times: 0.5 }, 9999), { from: 1000, to: 1060 });
});

test("rows lie on the grid; an unused key counts 0, and a balancer that did not run nothing", () => {
  const range: MetricsRange = {
    by: "key",
    begin: 100,
    end: 140,
    step_s: 10,
    fields: ["start_s", "requests", "ttft_p50_ms"],
    series: [],
    problem: "",
  };
  const rows = [[110, 3, 7.5]];
  assert.deepEqual(seriesIn(range, rows).start_ms, [100_000, 110_000, 120_000, 130_000]);
  assert.deepEqual(seriesIn(range, rows).columns.requests, [0, 3, 0, 0]);
  assert.deepEqual(seriesIn(range, rows).columns.ttft_p50_ms, [null, 7.5, null, null]);
  assert.deepEqual(seriesIn({ ...range, by: "fleet" }, rows).columns.requests, [null, 3, null, null]);
});
