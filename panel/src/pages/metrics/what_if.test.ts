import assert from "node:assert/strict";
import { test } from "node:test";
import type { CapacityAnswer } from "../../types";
import { FIRST, bodyOf, sentencesOf } from "./what_if";

const ANSWER: CapacityAnswer = {
  span_s: 600,
  measured_together: 2,
  replayed: {
    requests: 400,
    answered: 380,
    holds: false,
    ttft_p50_s: 0.4,
    ttft_p95_s: null,
    queue_p95_s: 9.5,
    busy: 0.97,
    breaks: { kind: "waits", at_s: 61, counts: { waits: 31, "queue full": 20 } },
  },
  sites: [{ name: "a1", slots: 2 }],
  slots_that_do: 6,
  agents_that_do: 1,
  at_that_holds: 0.7,
  is_whole: true,
};

test("an empty field is left to the balancer", () => {
  assert.deepEqual(bodyOf({ ...FIRST, at: "1.5" }), {
    p95_ttft_s: 2,
    at: 1.5,
    agents: 0,
    slots: null,
    deployment: "default",
  });
});

test("what breaks and what would hold is said", () => {
  const text = sentencesOf(ANSWER).join("\n");
  assert.match(text, /TTFT p95 none, p50 400 ms/);
  assert.match(text, /Breaks first: waits, after 1 min 01 s \(late or refused: waits 31, queue full 20\)/);
  assert.match(text, /Would hold: 6 slots of each agent, or 1 more agent, or 0.7 of the load/);
  assert.match(text, /at most 2\.0 answers together/);
});

test("a fleet that holds is told how much it bears", () => {
  const replayed = { ...ANSWER.replayed, holds: true, breaks: null };
  const found = { ...ANSWER, replayed, slots_that_do: null, agents_that_do: null, at_that_holds: 1.5000000002, is_whole: false };
  const said = sentencesOf(found);
  assert.ok(said.includes("Holds up to 1.5 times the load."));
  assert.equal(said.at(-1), "There was no time to try everything.");
});
