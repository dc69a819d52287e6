import assert from "node:assert/strict";
import { test } from "node:test";
import { aPlacement, anEndedRequest, aRequest } from "./examples";
import { placementStages, queueStages, type Stage } from "./stages";

const OURS = { reportsPreparation: true, stopping_ms: null };
const marks = (stages: Stage[]): [string, number, number | null][] =>
  stages.map(({ kind, start_ms, end_ms }) => [kind, start_ms, end_ms]);

test("stages are laid out backwards from the first result", () => {
  const [placement] = anEndedRequest().placements;
  assert.deepEqual(marks(placementStages(placement!, OURS)), [
    ["prepare", 1_000, 1_020],
    ["engine", 1_020, 1_040],
    ["cached", 1_040, 1_080],
    ["prefill", 1_080, 1_200],
    ["decode", 1_200, 2_200],
  ]);
});

test("stages never begin before the slot, overlap or leave a gap, whatever an agent measured", () => {
  for (const wait_ms of [null, 0, 50, 9_999]) {
    for (const prefill_ms of [null, 0, 50, 9_999]) {
      for (const prepared_ms of [null, 1_000, 1_300]) {
        const placement = aPlacement({ first_ms: 1_200, ended_ms: 1_500, wait_ms, prefill_ms, prepared_ms });
        const stages = placementStages(placement, OURS);
        assert.equal(stages[0]!.start_ms, 1_000);
        assert.equal(stages.at(-1)!.end_ms, 1_500);
        stages.forEach((stage, place) => {
          assert.ok(stage.end_ms! > stage.start_ms);
          assert.equal(stage.start_ms, place === 0 ? 1_000 : stages[place - 1]!.end_ms);
        });
      }
    }
  }
});

test("before the first result only an agent that reports preparation is known to prepare", () => {
  assert.deepEqual(marks(placementStages(aPlacement(), OURS)), [["prepare", 1_000, null]]);
  assert.deepEqual(marks(placementStages(aPlacement(), { ...OURS, reportsPreparation: false })), [["prefill", 1_000, null]]);
  assert.deepEqual(marks(placementStages(aPlacement({ prepared_ms: 1_100 }), OURS)), [
    ["prepare", 1_000, 1_100],
    ["prefill", 1_100, null],
  ]);
});

test("a stop cuts decode off, and a slot that was lost early has what it had", () => {
  const stopped = placementStages(aPlacement({ first_ms: 1_200 }), { ...OURS, stopping_ms: 1_400 });
  assert.deepEqual(marks(stopped).slice(-2), [
    ["decode", 1_200, 1_400],
    ["stop", 1_400, null],
  ]);
  assert.deepEqual(marks(placementStages(aPlacement({ ended_ms: 1_050 }), OURS)), [["prepare", 1_000, 1_050]]);
});

test("a stay in the queue ends with the request at the latest", () => {
  assert.equal(queueStages(aRequest({ queue: [{ since_ms: 1, until_ms: null, positions: [] }] }))[0]!.end_ms, null);
  const ended = aRequest({ ended_ms: 5, queue: [{ since_ms: 1, until_ms: null, positions: [] }] });
  assert.equal(queueStages(ended)[0]!.end_ms, 5);
});
