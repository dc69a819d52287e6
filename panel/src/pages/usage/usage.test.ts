import assert from "node:assert/strict";
import { test } from "node:test";
import { monthsBefore, pathOf, totalsOf, wantedIn } from "./usage";

test("an address says what is shown, and nonsense in it is left out", () => {
  assert.equal(pathOf(wantedIn(new URLSearchParams())), "api/v2/usage?by=key&per=month");
  const odd = wantedIn(new URLSearchParams("by=nobody&per=year&month=2026-1"));
  assert.equal(pathOf(odd), "api/v2/usage?by=key&per=month");
  const wanted = wantedIn(new URLSearchParams("by=user&per=day&month=2026-11"));
  assert.equal(pathOf(wanted, "csv"), "api/v2/usage?by=user&per=day&month=2026-11&format=csv");
});

test("months are of UTC and go over the end of a year", () => {
  const months = monthsBefore(new Date("2026-01-31T23:30:00-05:00"));
  assert.deepEqual(months.slice(0, 3), ["2026-02", "2026-01", "2025-12"]);
  assert.equal(months.length, 14);
});

test("rows are added up", () => {
  const row = {
    period: "2026-11",
    key: "a",
    user: null,
    model: null,
    requests: 2,
    failed: 0,
    refused: 1,
    prompt_tokens: 10,
    cached_tokens: 4,
    generated_tokens: 7,
    last_s: 0,
  };
  assert.deepEqual(totalsOf([row, row]), { requests: 4, refused: 2, prompt_tokens: 20, cached_tokens: 8, generated_tokens: 14 });
  assert.equal(totalsOf([]).requests, 0);
});
