import assert from "node:assert/strict";
import { test } from "node:test";
import { EventStreamParser } from "./event_stream";

const STREAM = ": hello\n\nid: e.1\ndata: {\"a\":\ndata: 1}\n\n: silence\n\nid:e.2\r\ndata:two\r\n\r\n";

test("events come out whole, wherever the stream is cut", () => {
  for (let size = 1; size <= STREAM.length; size += 1) {
    const parser = new EventStreamParser();
    const found = [];
    for (let from = 0; from < STREAM.length; from += size) {
      found.push(...parser.feed(STREAM.slice(from, from + size)));
    }
    assert.deepEqual(found, [
      { id: "e.1", data: '{"a":\n1}' },
      { id: "e.2", data: "two" },
    ]);
  }
});

test("what has no data is no event", () => {
  assert.deepEqual(new EventStreamParser().feed("id: e.1\n\n\n: x\n\nevent: ping\n\n"), []);
});
