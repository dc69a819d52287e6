import assert from "node:assert/strict";
import { test } from "node:test";
import type { FeedEvent, Topic } from "../types";
import { type FeedState, NOTHING, applied } from "./feed_state";

const TOPICS: readonly Topic[] = ["agents", "requests"];

function event(parts: Partial<FeedEvent>): FeedEvent {
  return { epoch: "e", seq: 1, full: false, now_ms: 0, time: "2026-01-01T00:00:00.000Z", set: {}, gone: {}, ...parts };
}

function begun(): FeedState {
  return applied(NOTHING, event({ full: true, set: { agents: { "1": "a", "2": "b" } } }), TOPICS).state;
}

function entries(state: FeedState, topic: Topic): unknown[] {
  return [...(state.topics[topic] ?? [])];
}

test("a full event makes topics known, empty ones too, and forgets the others", () => {
  const state = begun();
  assert.deepEqual(entries(state, "agents"), [["1", "a"], ["2", "b"]]);
  assert.equal(state.topics.requests?.size, 0);
  const other = applied(state, event({ full: true, seq: 2, set: { logs: { last: 1 } } }), ["logs"]).state;
  assert.equal(other.topics.agents, undefined);
  assert.deepEqual(entries(other, "logs"), [["last", 1]]);
});

test("a diff sets and removes, and leaves the map before as it was", () => {
  const before = begun();
  const { state } = applied(before, event({ seq: 2, set: { agents: { "3": "c", "1": "A" } }, gone: { agents: ["2"] } }), TOPICS);
  assert.deepEqual(entries(state, "agents"), [["1", "A"], ["3", "c"]]);
  assert.deepEqual(entries(before, "agents"), [["1", "a"], ["2", "b"]]);
  assert.equal(state.topics.requests, before.topics.requests);
});

test("a diff that was seen already changes nothing", () => {
  const before = begun();
  const { state, stale } = applied(before, event({ seq: 1, set: { agents: { "1": "old" } } }), TOPICS);
  assert.equal(state, before);
  assert.equal(stale, false);
});

test("a diff of another epoch is stale, a full event of it begins anew", () => {
  const before = begun();
  const strange = applied(before, event({ epoch: "f", seq: 9, set: { agents: { "1": "x" } } }), TOPICS);
  assert.equal(strange.stale, true);
  assert.equal(strange.state, before);
  const anew = applied(before, event({ epoch: "f", full: true, set: { agents: { "7": "g" } } }), TOPICS).state;
  assert.equal(anew.epoch, "f");
  assert.deepEqual(entries(anew, "agents"), [["7", "g"]]);
});

test("a key that comes again in a full event of the same epoch keeps its place", () => {
  const { state } = applied(begun(), event({ full: true, seq: 5, set: { agents: { a: 0, "2": "B", "1": "A" } } }), TOPICS);
  assert.deepEqual(entries(state, "agents"), [["1", "A"], ["2", "B"], ["a", 0]]);
});
