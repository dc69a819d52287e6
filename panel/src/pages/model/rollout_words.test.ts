import assert from "node:assert/strict";
import { test } from "node:test";
import type { Rollout } from "../../types";
import { changeWords, headline, ordersFor, progressSegments, questionOf, sortedAgents } from "./rollout_words";

const AGENT = { host: "h", deployment: "default", detail: null, progress: null };
const ROLLOUT: Rollout = {
  deployment: "default",
  phase: "rolling",
  reason: null,
  from: 1,
  to: 2,
  started: null,
  waits_for: null,
  ready_in_s: null,
  agents: [
    { ...AGENT, agent: "a10", phase: "serving" },
    { ...AGENT, agent: "a2", phase: "serving" },
    { ...AGENT, agent: "a3", phase: "loading" },
    { ...AGENT, agent: "a4", phase: "failed" },
  ],
};

test("what may be ordered depends on the phase, and on whether there is anything to go back to", () => {
  assert.deepEqual(ordersFor(ROLLOUT), ["pause", "abort"]);
  assert.deepEqual(ordersFor({ ...ROLLOUT, phase: "paused" }), ["resume", "abort"]);
  assert.deepEqual(ordersFor({ ...ROLLOUT, phase: "paused", from: null }), ["resume"]);
  assert.deepEqual(ordersFor({ ...ROLLOUT, phase: "complete" }), ["undo"]);
  assert.deepEqual(ordersFor({ ...ROLLOUT, phase: "rolled_back" }), []);
});

test("what cannot be taken back at once is asked for", () => {
  assert.match(questionOf("abort", ROLLOUT) ?? "", /go back to revision 1/);
  assert.equal(questionOf("pause", ROLLOUT), null);
});

test("trouble first, and the agents counted", () => {
  assert.deepEqual(sortedAgents(ROLLOUT.agents).map((each) => each.agent), ["a4", "a3", "a2", "a10"]);
  assert.deepEqual(progressSegments(ROLLOUT).map((each) => [each.label, each.value]), [
    ["serving", 2],
    ["under way", 0.02], // as far as it is: a bar at 0 % is not full
    ["failed", 1],
  ]);
  assert.equal(headline(ROLLOUT), "2 of 4 agents serve it.");
  assert.equal(headline({ ...ROLLOUT, agents: [] }), "No agent has it yet.");
  assert.equal(changeWords(ROLLOUT), "revision 1 → 2");
  assert.equal(changeWords({ ...ROLLOUT, from: null }), "revision 2");
  assert.equal(changeWords({ ...ROLLOUT, phase: "rolled_back", from: 3 }), "revision 2 was tried");
});
