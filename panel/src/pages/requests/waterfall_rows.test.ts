import assert from "node:assert/strict";
import { test } from "node:test";
import { anEndedRequest, aPlacement, aRequest } from "../timeline/examples";
import { waterfallRows } from "./waterfall_rows";

const NOW = 5_000;

test("a request that is done has every stage, in the order of time", () => {
  const rows = waterfallRows(anEndedRequest(), NOW);
  assert.deepEqual(rows.map((row) => row.label), [
    "Arrival",
    "Queue",
    "Placed on a1",
    "Template, tools, grammar",
    "Engine's queue",
    "Prefill",
    "First token",
    "Decode",
    "Ending",
  ]);
  rows.forEach((row, place) => assert.ok(place === 0 || row.start_ms >= rows[place - 1]!.start_ms, row.label));
  const prefill = rows.find((row) => row.label === "Prefill")!;
  assert.equal(prefill.cached, 0.25);
  assert.match(prefill.note, /^100 tokens: 25 cached, 75 computed, 469 tok\/s\.$/);
  assert.match(rows.find((row) => row.label === "Decode")!.note, /^51 tokens, 50\.0 tok\/s\.$/);
  assert.equal(rows.find((row) => row.label === "Decode")!.curve.length, 2);
});

test("a continuation goes from agent to agent, through the queue", () => {
  const view = anEndedRequest({
    continuations: 1,
    queue: [
      { since_ms: 900, until_ms: 1_000, positions: [] },
      { since_ms: 1_500, until_ms: 1_600, positions: [[1_500, 2]] },
    ],
    placements: [
      aPlacement({ first_ms: 1_200, ended_ms: 1_500, ending: "lost: the connection broke" }),
      aPlacement({ agent: "a2", agent_key: 2, at_ms: 1_600, first_ms: 1_700, ended_ms: 2_200, ending: "done" }),
    ],
  });
  const labels = waterfallRows(view, NOW).map((row) => row.label);
  assert.deepEqual(labels.filter((label) => /lost|Queue|Continued|Placed|First/.test(label)), [
    "Queue",
    "Placed on a1",
    "First token",
    "Agent lost",
    "Queue again",
    "Continued on a2",
    "First new token",
  ]);
  assert.equal(waterfallRows(view, NOW).find((row) => row.label === "Agent lost")!.note, "The connection broke.");
});

test("preemptions have their moments, as far as they are known", () => {
  const view = anEndedRequest();
  const note = (more: object): string => {
    const placements = view.placements.map((each) => ({ ...each, ...more }));
    return waterfallRows({ ...view, placements }, NOW).find((row) => row.label === "Decode")!.note;
  };
  const { arrived_ms } = view;
  assert.match(note({ preemptions: 2, preempted_ms: [arrived_ms + 400, arrived_ms + 2_000] }), /Preempted 2 times, after 400 ms, 2\.00 s\.$/);
  assert.match(note({ preemptions: 1 }), /Preempted 1 time\.$/);
});

test("what goes on has no end yet, and its length grows", () => {
  const waiting = aRequest({ phase: "buffered", placements: [], queue: [{ since_ms: 900, until_ms: null, positions: [[900, 3]] }], position: 1 });
  const row = waterfallRows(waiting, 1_900)[1]!;
  assert.equal(row.end_ms, null);
  assert.equal(row.value, "1.00 s");
  assert.equal(row.note, "3 requests before it, then 1.");
});

test("a failed request says with what", () => {
  const view = anEndedRequest({ 
    ending: { kind: "failed", code: 503, text: "Buffered requests overflow", finish: null },
    state: { state: "failed", word: "failed 503", severity: "bad" },
  });
  const ending = waterfallRows(view, NOW).at(-1)!;
  assert.equal(ending.kind, "lost");
  assert.equal(ending.note, "Failed 503: Buffered requests overflow.");
});
