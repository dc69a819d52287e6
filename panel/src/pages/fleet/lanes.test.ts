import assert from "node:assert/strict";
import { test } from "node:test";
import type { RequestView } from "../../types";
import { exampleAgent } from "./example_agent";
import { LaneBook } from "./lanes";

const NONE: ReadonlyMap<string, RequestView> = new Map();

function keys(book: LaneBook, lanes: [number, "d", number][], requests = NONE): (number | undefined)[] {
  return book.of(exampleAgent({ lanes }), requests).map((lane) => lane?.request);
}

test("a request stays in its lane while others come and go", () => {
  const book = new LaneBook();
  assert.deepEqual(keys(book, [[1, "d", 0], [2, "d", 0], [3, "d", 0]]), [1, 2, 3, undefined]);
  assert.deepEqual(keys(book, [[3, "d", 0]]), [undefined, undefined, 3, undefined]);
  assert.deepEqual(keys(book, [[9, "d", 0], [3, "d", 0]]), [9, undefined, 3, undefined]);
});

test("the lane of the placement is the one that is shown", () => {
  const placed = { placements: [{ agent_key: 1, lane: 3, ended_ms: null }] } as unknown as RequestView;
  assert.deepEqual(keys(new LaneBook(), [[7, "d", 0]], new Map([["7", placed]])), [undefined, undefined, undefined, 7]);
});

test("more requests than slots have lanes too", () => {
  const lanes = [1, 2, 3, 4, 5, 6].map((key): [number, "d", number] => [key, "d", 0]);
  assert.deepEqual(keys(new LaneBook(), lanes), [1, 2, 3, 4, 5, 6]);
});

test("lanes of an agent that did not change are the same object", () => {
  const book = new LaneBook();
  const agent = exampleAgent({ lanes: [[1, "d", 0]] });
  assert.equal(book.of(agent, NONE), book.of(agent, NONE));
  book.keep(new Map());
  assert.deepEqual(book.of(agent, NONE)[0]?.request, 1);
});
