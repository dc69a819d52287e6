import assert from "node:assert/strict";
import { test } from "node:test";
import { newAnswer, type Answer } from "./answer";
import {
  EMPTY,
  MAX_TURNS,
  added,
  branches,
  choose,
  copyOfPath,
  path,
  withAnswer,
  type Conversation,
  type Turn,
} from "./conversation";
import { asFile, fromFile } from "./conversation_file";
import { DEFAULT_SETTINGS, chatBody, completionBody, messagesOf, settingsProblems, streamed } from "./request_body";

function done(content: string, more: Partial<Answer> = {}): Answer {
  return { ...newAnswer("r", "default", 0), phase: "done", content, ...more };
}

function said(conversation: Conversation, parent: number | null, text: string) {
  return added(conversation, parent, { role: "user", text, pictures: [] });
}

function answered(conversation: Conversation, parent: number | null, answer: Answer) {
  return added(conversation, parent, { role: "assistant", answer });
}

const texts = (turns: readonly Turn[]) =>
  turns.map((turn) => (turn.role === "user" ? turn.text : turn.role === "assistant" ? turn.answer.content : "tool"));

/** Hello → Hi | Hey; below Hey: More. */
function branched() {
  const first = said(EMPTY, null, "Hello");
  const hi = answered(first.conversation, first.id, done("Hi"));
  const hey = answered(hi.conversation, first.id, done("Hey"));
  const more = said(hey.conversation, hey.id, "More");
  return { conversation: more.conversation, first: first.id, hi: hi.id, hey: hey.id, more: more.id };
}

test("asking again adds a branch, and each branch keeps what follows it", () => {
  const { conversation, hi, hey } = branched();
  assert.deepEqual(texts(path(conversation)), ["Hello", "Hey", "More"]);
  assert.deepEqual(branches(conversation, hey), [hi, hey]);
  const back = choose(conversation, hi);
  assert.deepEqual(texts(path(back)), ["Hello", "Hi"]);
  assert.deepEqual(texts(path(choose(back, hey))), ["Hello", "Hey", "More"]);
});

test("editing the first turn is a branch of the beginning", () => {
  const { conversation, first } = branched();
  const edited = said(conversation, null, "Good day");
  assert.deepEqual(texts(path(edited.conversation)), ["Good day"]);
  assert.deepEqual(branches(edited.conversation, edited.id), [first, edited.id]);
});

test("what comes late for a conversation that is gone changes nothing", () => {
  const { conversation, hi } = branched();
  assert.equal(withAnswer(conversation, hi, { ...done("late"), requestId: "other" }), conversation);
  const turn = withAnswer(conversation, hi, done("more")).turns.get(hi);
  assert.equal(turn?.role === "assistant" && turn.answer.content, "more");
});

test("a copy has the shown turns alone", () => {
  const { conversation } = branched();
  const copy = copyOfPath(conversation);
  assert.deepEqual(texts(path(copy)), ["Hello", "Hey", "More"]);
  assert.equal(copy.turns.size, 3);
});

test("a conversation has a limit", () => {
  let conversation = EMPTY;
  for (let number = 0; number < MAX_TURNS; number += 1) {
    conversation = said(conversation, null, "x").conversation;
  }
  assert.throws(() => said(conversation, null, "x"), /2000 turns/);
});

test("messages have system, pictures, reasoning, calls and their results", () => {
  const picture = { name: "p.png", type: "image/png", bytes: 3, url: "data:image/png;base64,AAAA" };
  const user = added(EMPTY, null, { role: "user", text: "What is it?", pictures: [picture] });
  const call = { id: "c0", name: "look", arguments: '{"at":1}' };
  const cut = { id: "c1", name: "look", arguments: '{"at"' };
  const calling = answered(user.conversation, user.id, done("", { reasoning: "Hm", calls: [call, cut] }));
  const tool = added(calling.conversation, calling.id, {
    role: "tool",
    results: [{ callId: "c0", name: "look", text: "a cat" }],
  });
  assert.deepEqual(messagesOf(path(tool.conversation), "Be brief."), [
    { role: "system", content: "Be brief." },
    {
      role: "user",
      content: [
        { type: "image_url", image_url: { url: picture.url } },
        { type: "text", text: "What is it?" },
      ],
    },
    {
      role: "assistant",
      content: null,
      reasoning_content: "Hm",
      tool_calls: [{ id: "c0", type: "function", function: { name: "look", arguments: '{"at":1}' } }],
    },
    { role: "tool", tool_call_id: "c0", content: "a cat" },
  ]);
});

test("calls that nobody answered are left out, and their turn if it had nothing else", () => {
  const user = said(EMPTY, null, "Weather?");
  const call = { id: "c0", name: "look", arguments: "{}" };
  const calling = answered(user.conversation, user.id, done("", { calls: [call] }));
  const next = said(calling.conversation, calling.id, "Never mind.");
  assert.deepEqual(
    messagesOf(path(next.conversation), "").map((message) => message["role"]),
    ["user", "user"],
  );
});

test("an answer that failed without a word is no message", () => {
  const user = said(EMPTY, null, "Hello");
  const broken = answered(user.conversation, user.id, { ...done(""), phase: "failed" });
  assert.deepEqual(messagesOf(path(broken.conversation), ""), [{ role: "user", content: "Hello" }]);
});

test("a body has only what was set, and a stream's fields only where they are sent", () => {
  const user = said(EMPTY, null, "Hello");
  const body = chatBody(path(user.conversation), DEFAULT_SETTINGS, "default");
  assert.deepEqual(body, { model: "default", messages: [{ role: "user", content: "Hello" }] });
  const settings = {
    ...DEFAULT_SETTINGS,
    parameters: { temperature: "0", seed: " 7 ", top_p: "" },
    stop: "END\n\\n\\n",
    thinking: "off" as const,
    format: "json" as const,
  };
  const full = chatBody([], settings, "coder");
  assert.deepEqual(full, {
    model: "coder",
    messages: [],
    temperature: 0,
    seed: 7,
    stop: ["END", "\n\n"],
    enable_thinking: false,
    response_format: { type: "json_object" },
  });
  assert.equal(streamed(full)["stream"], true);
  assert.deepEqual(completionBody([1, 2], DEFAULT_SETTINGS, "d"), { model: "d", prompt: [1, 2] });
});

test("settings that are wrong are named with value and limit", () => {
  const problems = settingsProblems({
    ...DEFAULT_SETTINGS,
    parameters: { temperature: "3", seed: "1.5", top_k: "many" },
    stop: "x".repeat(2000),
    tools: [{ name: "a b", description: "", schema: "" }],
    format: "schema",
    schema: "{",
  });
  assert.equal(problems.get("temperature"), "temperature is 3, must be a number, 0 to 2");
  assert.equal(problems.get("seed"), "seed is 1.5, must be a whole number, 0 or more");
  assert.match(problems.get("top_k") ?? "", /top_k is many/);
  assert.match(problems.get("stop") ?? "", /2000 characters, the limit is 1024/);
  assert.match(problems.get("tools[0]") ?? "", /name is a b/);
  assert.match(problems.get("response_format") ?? "", /line 1, column 2/);
});

test("an exported conversation is imported as it was", () => {
  const { conversation } = branched();
  const settings = { ...DEFAULT_SETTINGS, system: "Be brief.", parameters: { seed: "7" } };
  const read = fromFile(asFile(conversation, settings));
  assert.deepEqual(texts(path(read.conversation)), ["Hello", "Hey", "More"]);
  assert.equal(read.conversation.turns.size, 4);
  assert.equal(read.conversation.nextId, conversation.nextId);
  assert.deepEqual(read.settings, settings);
});

test("an answer that runs is exported as stopped", () => {
  const user = said(EMPTY, null, "Hello");
  const running = answered(user.conversation, user.id, newAnswer("r", "default", 0));
  const half = withAnswer(running.conversation, running.id, { ...newAnswer("r", "default", 0), content: "Ha" });
  const turn = path(fromFile(asFile(half, DEFAULT_SETTINGS)).conversation)[1];
  assert.equal(turn?.role === "assistant" && turn.answer.phase, "stopped");
});

test("a file that is none is refused with the place of what is wrong", () => {
  const file = (value: object) => JSON.stringify({ format: "paddler-trio.conversation.1", turns: [], chosen: [], ...value });
  assert.throws(() => fromFile("x"), /no JSON/);
  assert.throws(() => fromFile("{}"), /format must be/);
  assert.throws(() => fromFile(file({ turns: [{ id: 0, parent: 5, role: "user", text: "a", pictures: [] }] })), /turns\[0\]\.parent is 5/);
  assert.throws(() => fromFile(file({ turns: [{ id: 0, parent: null, role: "robot" }] })), /turns\[0\]\.role/);
  assert.throws(
    () =>
      fromFile(
        file({
          turns: [
            { id: 0, parent: null, role: "user", text: "", pictures: [{ name: "x", url: "https://example.org/x.png" }] },
          ],
        }),
      ),
    /turns\[0\]\.pictures\[0\]\.url must be a data URI/,
  );
  assert.throws(() => fromFile(file({ chosen: [[-1, 4]] })), /chosen\[0\]/);
});
