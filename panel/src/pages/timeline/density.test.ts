import assert from "node:assert/strict";
import { test } from "node:test";
import { BUCKETS, Density } from "./density";

test("what was busy is spread over the seconds that it touched", () => {
  const density = new Density();
  density.add("decode", 500, 2_250, 2);
  assert.deepEqual([0, 1, 2, 3].map((bucket) => density.slots(bucket, "decode")), [1, 2, 2, 0]);
  density.add("prefill", 2_250, 2_500, 4); // the newest second is half over
  assert.deepEqual([density.slots(2, "decode"), density.slots(2, "prefill")], [1, 2]);
  assert.equal(density.slots(1, "prefill"), 0);
});

test("the ring forgets what is older than it is long", () => {
  const density = new Density();
  density.add("decode", 0, 1_000);
  density.add("decode", BUCKETS * 1_000, BUCKETS * 1_000 + 1_000);
  assert.equal(density.slots(0, "decode"), 0);
  assert.equal(density.slots(BUCKETS, "decode"), 1);
  density.add("decode", 0, 500); // too late to be shown
  assert.equal(density.slots(BUCKETS, "decode"), 1);
});

test("an hour of silence leaves nothing behind", () => {
  const density = new Density();
  density.add("prefill", 0, 10_000);
  density.add("prefill", 3_600_000, 3_600_100);
  for (let bucket = 3_600 - BUCKETS + 1; bucket < 3_600; bucket += 1) {
    assert.equal(density.slots(bucket, "prefill"), 0);
  }
});
