import assert from "node:assert/strict";
import { test } from "node:test";
import { commandOf } from "./commands";
import { type Cursor, stepped } from "./cursor";
import { anAgent, aPlacement, aRequest } from "./examples";
import { TimelineHistory } from "./history";
import { rowsOf } from "./rows";

function example() {
  const history = new TimelineHistory();
  history.takeAgents(new Map([["1", anAgent({ slots_total: 2 })]]), 1_000);
  const at = (key: number, at_ms: number) =>
    aRequest({ key, queue: [], placements: [aPlacement({ lane: 1, at_ms, first_ms: at_ms + 10, ended_ms: at_ms + 50 })] });
  history.take([at(1, 1_000), at(2, 2_000), at(3, 3_000)], 4_000);
  return rowsOf(history.groups, new Map()).rows;
}

test("the first step goes to the first row, then row by row", () => {
  const rows = example();
  let cursor: Cursor | null = null;
  const seen: (number | null)[] = [];
  for (let step = 0; step < rows.length; step += 1) {
    cursor = stepped(cursor, "down", rows, 2_020);
    seen.push(cursor!.lane);
  }
  assert.deepEqual(seen, [null, 0, null, 0, 1]);
  assert.equal(cursor!.track!.request, 2);
  assert.equal(stepped(cursor, "down", rows, 0), cursor);
});

test("from request to request, and not beyond the last one", () => {
  const rows = example();
  const last = rows.at(-1)!;
  const begin: Cursor = { group: last.source, lane: 1, track: null, at_ms: 1_500 };
  const later = stepped(begin, "later", rows, 0)!;
  assert.equal(later.track!.request, 2);
  assert.equal(stepped(begin, "earlier", rows, 0)!.track!.request, 1);
  assert.equal(stepped(later, "earlier", rows, 0)!.track!.request, 1);
  const end = stepped(later, "later", rows, 0)!;
  assert.equal(stepped(end, "later", rows, 0), end);
});

test("keys of the browser stay the browser's", () => {
  const key = (name: string, more = {}) => ({ key: name, shiftKey: false, ctrlKey: false, metaKey: false, altKey: false, ...more });
  assert.equal(commandOf(key("ArrowLeft")), "earlier");
  assert.equal(commandOf(key("ArrowLeft", { shiftKey: true })), "pan-left");
  assert.equal(commandOf(key("+", { shiftKey: true })), "zoom-in");
  assert.equal(commandOf(key("ArrowLeft", { altKey: true })), null);
  assert.equal(commandOf(key("-", { ctrlKey: true })), null);
  assert.equal(commandOf(key("Tab")), null);
});
