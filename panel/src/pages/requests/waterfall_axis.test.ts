import assert from "node:assert/strict";
import { test } from "node:test";
import { axisMarks } from "./waterfall_axis";

test("labels of an axis never run into each other, and end within it", () => {
  for (const width of [160, 220, 248, 400, 720]) {
    for (const span of [1, 7, 90, 999, 1234, 9876, 61_000, 119_000, 299_000, 600_000, 3_600_000]) {
      let free = 0;
      for (const mark of axisMarks(span, width)) {
        if (mark.label !== "") {
          const size = mark.label.length * 7;
          const at = (mark.ms / span) * width;
          const left = mark.isBefore ? at - size : at;
          assert.ok(left >= free, `${mark.label} of ${span} ms at ${width} px`);
          assert.ok(left + size <= width, `${mark.label} of ${span} ms at ${width} px`);
          free = left + size;
        }
      }
    }
  }
});

test("the axis begins with 0, and a label that has room behind its line stands there", () => {
  const [zero, next] = axisMarks(1000, 720);
  assert.deepEqual(zero, { ms: 0, label: "0", isBefore: false });
  assert.ok(next !== undefined && next.label !== "" && !next.isBefore);
});
