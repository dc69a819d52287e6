import assert from "node:assert/strict";
import { test } from "node:test";
import { figuresOf, newRun, type Run, withEvent } from "./concurrency";

const piece = (index: number, content: string): string => JSON.stringify({ choices: [{ index, delta: { content } }], usage: null });

test("each stream has its first token, and all of them their speed", () => {
  let run: Run = newRun(3);
  run = withEvent(run, JSON.stringify({ choices: [{ index: 0, delta: { role: "assistant", content: null } }] }), 5);
  assert.equal(figuresOf(run).begun, 0);
  run = withEvent(run, piece(0, "a"), 100);
  run = withEvent(run, piece(1, "b"), 200);
  run = withEvent(run, piece(0, "c"), 300);
  run = withEvent(run, piece(1, "d"), 1100);
  run = withEvent(run, piece(9, "not one of them"), 1150);
  run = withEvent(run, JSON.stringify({ choices: [], usage: { completion_tokens: 40 } }), 1150);
  run = withEvent(run, "[DONE]", 1200);
  const figures = figuresOf(run);
  assert.equal(figures.begun, 2);
  assert.deepEqual(figures.firstMs, { middle: 100, worst: 200 });
  assert.equal(figures.tokensPerS, 40);
  assert.equal(figures.perStream?.toFixed(2), "1.11");
  assert.equal(run.endedMs, 1200);
});

test("a failure inside the stream is told, and nothing is nothing", () => {
  const failed = withEvent(newRun(1), JSON.stringify({ error: { message: "no slot" } }), 7);
  assert.equal(failed.problem, "no slot");
  assert.deepEqual(figuresOf(failed), { begun: 0, firstMs: null, tokensPerS: null, perStream: null });
});
