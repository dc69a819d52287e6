import assert from "node:assert/strict";
import { test } from "node:test";
import { HEAD_HEIGHT, MAX_OPEN_GROUP, rowAt, rowsBetween, rowsOf } from "./rows";

const sources = (count: number, lanes: number) => Array.from({ length: count }, (_, place) => ({ id: `a${place}`, lanes }));

test("a few agents show their slots, hundreds one row each", () => {
  assert.equal(rowsOf(sources(3, 4), new Map()).rows.length, 3 * 5);
  const many = rowsOf(sources(500, 32), new Map());
  assert.equal(many.rows.length, 500);
  assert.equal(many.height, 500 * HEAD_HEIGHT);
});

test("what the viewer chose wins", () => {
  assert.equal(rowsOf(sources(500, 32), new Map([["a7", true]])).rows.length, 500 + 32);
  assert.equal(rowsOf(sources(3, 4), new Map([["a1", false]])).rows.length, 15 - 4);
});

test("one agent with very many slots is collapsed by itself", () => {
  assert.equal(rowsOf([{ id: "a", lanes: MAX_OPEN_GROUP + 1 }], new Map()).rows.length, 1);
});

test("heights and rows find each other", () => {
  const { rows, height } = rowsOf(sources(20, 4), new Map());
  rows.forEach((row, place) => {
    assert.equal(rowAt(rows, row.top), place);
    assert.equal(rowAt(rows, row.top + row.height - 1), place);
  });
  assert.equal(rowAt(rows, -1), -1);
  assert.equal(rowAt(rows, height), -1);
  const [first, last] = rowsBetween(rows, 100, 200);
  rows.forEach((row, place) => {
    const isInSight = row.top + row.height > 100 && row.top < 200;
    assert.ok(!isInSight || (place >= first && place < last), `${place} is in sight`);
  });
  assert.ok(last - first < 12);
});
