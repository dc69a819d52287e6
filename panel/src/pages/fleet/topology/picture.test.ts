import assert from "node:assert/strict";
import { test } from "node:test";
import type { RequestView } from "../../../types";
import { exampleAgent } from "../example_agent";
import { LaneBook } from "../lanes";
import { ClientBook, pictureOf, sentenceOf } from "./picture";

function inFlight(names: readonly string[]): Map<string, { count: number; uses: Set<string> }> {
  return new Map(names.map((name) => [name, { count: 1, uses: new Set(["default"]) }]));
}

function request(parts: Partial<RequestView>): RequestView {
  return { client: "app", deployment: "default", phase: "buffered", position: 1, placements: [], ...parts } as RequestView;
}

test("clients keep their places; an eighth shares one until another has gone", () => {
  const book = new ClientBook();
  const seven = ["a", "b", "c", "d", "e", "f", "g"];
  assert.deepEqual(book.place(inFlight(seven)).map((each) => each.name), seven);
  assert.deepEqual(book.place(inFlight([...seven, "h"])).at(-1), { name: "others", count: 1, uses: new Set(["default"]) });
  const after = book.place(inFlight(["h", "g"])).map((each) => `${each.name}${each.count}`);
  assert.deepEqual(after, ["h1", "b0", "c0", "d0", "e0", "f0", "g1"]);
});

test("the queue is in its order, and the sentence says it all", () => {
  const requests = new Map([
    ["5", request({ key: 5, position: 2 })],
    ["4", request({ key: 4, position: 1, client: "" })],
    ["3", request({ key: 3, phase: "streaming", position: null })],
    ["2", request({ key: 2, phase: "ended" })],
  ]);
  const agents = new Map([["1", exampleAgent({ lanes: [[3, "d", 0]] })]]);
  const picture = pictureOf(agents, new Map(), requests, 0, new LaneBook(), new ClientBook());
  assert.deepEqual(picture.queues[0]?.keys, [4, 5]);
  assert.deepEqual(picture.clients.map((each) => [each.name, each.count]), [["anonymous", 1], ["app", 2]]);
  assert.equal(sentenceOf(picture), "2 clients, 2 waiting, 1 agent, 1 of 4 slots busy");
});
