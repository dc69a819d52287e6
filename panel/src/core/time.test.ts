import assert from "node:assert/strict";
import { test } from "node:test";
import { now, synchronize, wallTime } from "./time";

const NOON = "2026-03-04T12:00:00.250Z";

function isNear(value: number, wanted: number): boolean {
  return value >= wanted - 1 && value < wanted + 500;
}

test("the balancer's clock goes on from its events, and late ones do not turn it back", () => {
  assert.equal(now(), 0);
  synchronize({ now_ms: 5000, time: NOON });
  assert.ok(isNear(now(), 5000));
  assert.equal(wallTime(5000).toISOString(), NOON);
  assert.equal(wallTime(4000).toISOString(), "2026-03-04T11:59:59.250Z");
  synchronize({ now_ms: 4500, time: "2026-03-04T11:59:59.750Z" }); // half a second under way
  assert.ok(isNear(now(), 4985), String(now()));
  assert.equal(wallTime(5000).toISOString(), NOON);
});

test("another start of the balancer has another clock", () => {
  synchronize({ now_ms: 100, time: NOON });
  assert.ok(isNear(now(), 100));
  assert.equal(wallTime(100).toISOString(), NOON);
});
