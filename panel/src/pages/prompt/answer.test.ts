import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type Answer,
  failureOfBody,
  newAnswer,
  readWaiting,
  stopped,
  withItem,
} from "./answer";
import { MAX_EVENT_CHARS, SseParser } from "./sse_parser";

function after(events: readonly unknown[], start: Answer = newAnswer("r1", "default", 0)): Answer {
  return events.reduce<Answer>(
    (answer, event) =>
      withItem(
        answer,
        { kind: "data", data: typeof event === "string" ? event : JSON.stringify(event) },
        100,
      ),
    start,
  );
}

const delta = (fields: object, finish: string | null = null) => ({
  choices: [{ index: 0, delta: fields, finish_reason: finish }],
});

test("events that arrive in any pieces are the same events", () => {
  const stream = ': queued position=2\n\ndata: {"a":1}\r\n\r\ndata: x\ndata:y\n\ndata: [DONE]\n\n';
  const whole = new SseParser().feed(stream);
  for (let size = 1; size < stream.length; size += 1) {
    const parser = new SseParser();
    const items = [];
    for (let at = 0; at < stream.length; at += size) {
      items.push(...parser.feed(stream.slice(at, at + size)));
    }
    assert.deepEqual(items, whole);
  }
  assert.deepEqual(whole, [
    { kind: "comment", text: "queued position=2" },
    { kind: "data", data: '{"a":1}' },
    { kind: "data", data: "x\ny" },
    { kind: "data", data: "[DONE]" },
  ]);
});

test("an event without an end is refused", () => {
  const parser = new SseParser();
  parser.feed("data: ");
  assert.throws(() => parser.feed("x".repeat(MAX_EVENT_CHARS + 1)), /more than 4194304 characters/);
});

test("reasoning, content and the reason of the end come out of chunks", () => {
  const answer = after([
    delta({ role: "assistant", content: null }),
    delta({ reasoning_content: "Hm" }),
    delta({ reasoning_content: "m." }),
    delta({ content: "Yes" }),
    delta({ content: "." }),
    delta({}, "stop"),
    "[DONE]",
  ]);
  assert.equal(answer.reasoning, "Hmm.");
  assert.equal(answer.content, "Yes.");
  assert.equal(answer.finishReason, "stop");
  assert.equal(answer.phase, "done");
  assert.equal(answer.firstMs, 100);
});

test("calls grow by their index, and two stand beside each other", () => {
  const call = (fields: object) => delta({ tool_calls: [fields] });
  const answer = after([
    call({ index: 0, id: "c0", type: "function", function: { name: "sum", arguments: "" } }),
    call({ index: 0, function: { arguments: '{"a":' } }),
    call({ index: 0, function: { arguments: "1}" } }),
    call({ index: 1, id: "c1", type: "function", function: { name: "now", arguments: "{}" } }),
    call({ index: 7, function: { arguments: "lost" } }),
    delta({}, "tool_calls"),
  ]);
  assert.deepEqual(answer.calls, [
    { id: "c0", name: "sum", arguments: '{"a":1}' },
    { id: "c1", name: "now", arguments: "{}" },
  ]);
});

test("usage and timings become counts, whichever chunk has them", () => {
  const answer = after([
    { choices: [], timings: { cache_n: 3, prompt_n: 5, prompt_ms: 12.5, predicted_n: 2, predicted_ms: 10 } },
    {
      choices: [],
      usage: {
        prompt_tokens: 8,
        completion_tokens: 4,
        prompt_tokens_details: { cached_tokens: 3 },
        completion_tokens_details: { reasoning_tokens: 1 },
      },
    },
  ]);
  assert.deepEqual(answer.counts, {
    promptTokens: 8,
    cachedTokens: 3,
    tokens: 4,
    reasoningTokens: 1,
    promptMs: 12.5,
    generatedMs: 10,
    tokensPerS: null,
  });
});

test("a comment says why it waits until the first text comes", () => {
  const comment = (answer: Answer, text: string) => withItem(answer, { kind: "comment", text }, 1);
  let answer = comment(newAnswer("r1", "default", 0), "queued position=3 the model is loading");
  const reason = "the model is loading";
  assert.deepEqual(answer.waiting, { kind: "queued", position: 3, startS: null, reason });
  answer = comment(answer, "queued position=2 expected_start_s=12.5 the model is loading");
  assert.deepEqual(answer.waiting, { kind: "queued", position: 2, startS: 12.5, reason });
  answer = comment(answer, "queued position=1 expected_start_s=0.4");
  assert.deepEqual(answer.waiting, { kind: "queued", position: 1, startS: 0.4, reason: "" });
  answer = comment(answer, "prefilling tokens=512/4096");
  assert.deepEqual(answer.waiting, { kind: "prefilling", done: 512, total: 4096 });
  answer = after([delta({ content: "A" })], answer);
  assert.equal(answer.waiting, null);
  assert.equal(comment(answer, "working").waiting, null);
  assert.equal(readWaiting("something else"), null);
});

test("progress of the prompt shows while nothing else came", () => {
  const answer = after([{ choices: [], prompt_progress: { total: 10, processed: 4 } }]);
  assert.deepEqual(answer.waiting, { kind: "prefilling", done: 4, total: 10 });
});

test("an error inside a stream ends it and keeps what came", () => {
  const answer = after([
    delta({ content: "Half" }),
    { error: { message: "the agent was lost", type: "server_error", param: null, code: "agent_lost" } },
    delta({ content: "never" }),
  ]);
  assert.equal(answer.phase, "failed");
  assert.equal(answer.failure?.status, 502);
  assert.ok(answer.content.startsWith("Half"));
});

test("what is stopped stays stopped", () => {
  const answer = stopped(after([delta({ content: "Half" })]), 200);
  assert.equal(answer.phase, "stopped");
  assert.equal(after(["[DONE]"], answer).phase, "stopped");
});

test("text of a completion is content", () => {
  const answer = after([{ choices: [{ index: 0, text: "once", finish_reason: null }] }]);
  assert.equal(answer.content, "once");
});

test("a refusal's body is read in whatever form it has", () => {
  const openai = failureOfBody(400, '{"error":{"message":"n is 0","param":"n","code":"invalid_value"}}', null);
  assert.deepEqual(openai, { status: 400, text: "n is 0", field: "n", retryAfterS: null });
  assert.equal(failureOfBody(503, "busy", "7").retryAfterS, 7);
  assert.equal(failureOfBody(502, "<h1>Bad gateway</h1>", null).text, "<h1>Bad gateway</h1>");
  assert.equal(failureOfBody(500, "", null).text, "status 500");
});

test("what is no JSON fails the answer with a piece of it", () => {
  assert.match(after(["<html>"]).failure?.text ?? "", /no JSON: <html>/);
});
