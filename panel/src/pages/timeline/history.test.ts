import assert from "node:assert/strict";
import { test } from "node:test";
import type { Agent, Lane } from "../../types";
import { anAgent, anEndedRequest, aPlacement, aRequest } from "./examples";
import { MAX_TRACKS, TimelineHistory } from "./history";
import type { Group } from "./group";

function agents(...list: Agent[]): ReadonlyMap<string, Agent> {
  return new Map(list.map((agent) => [String(agent.key), agent]));
}

function groupNamed(history: TimelineHistory, label: string): Group {
  const found = history.groups.find((group) => group.label === label);
  assert.ok(found, `no group ${label}`);
  return found;
}

const tracksOf = (group: Group, lane: number) => group.lane(lane)?.tracks ?? [];

test("a request is in the queue, then in the slot of its placement", () => {
  const history = new TimelineHistory();
  history.takeAgents(agents(anAgent()), 1_000);
  history.take([aRequest({ placements: [aPlacement({ lane: 2 })] })], 1_100);
  assert.equal(tracksOf(history.queue, 0)[0]!.end_ms, 1_000);
  assert.equal(tracksOf(groupNamed(history, "a1"), 2)[0]!.end_ms, null);
  history.take([anEndedRequest({ placements: [aPlacement({ lane: 2, first_ms: 1_200, ended_ms: 1_900, ending: "done" })] })], 2_000);
  const tracks = tracksOf(groupNamed(history, "a1"), 2);
  assert.equal(tracks.length, 1);
  assert.equal(tracks[0]!.end_ms, 1_900);
});

test("waiting requests are below each other, and a free line is used again", () => {
  const history = new TimelineHistory();
  const waits = (key: number, since_ms: number, until_ms: number | null) =>
    aRequest({ key, phase: "buffered", placements: [], queue: [{ since_ms, until_ms, positions: [] }] });
  history.take([waits(1, 100, null), waits(2, 110, 150), waits(3, 160, null)], 200);
  assert.deepEqual([tracksOf(history.queue, 0), tracksOf(history.queue, 1)].map((tracks) => tracks.map((track) => track.request)), [[1], [2, 3]]);
});

test("without views, the list of an agent's slots draws its requests, and a view takes their place", () => {
  const history = new TimelineHistory();
  const lanes = (...found: Lane[]) => agents(anAgent({ lanes: found }));
  history.takeAgents(lanes([7, "p", 1_000]), 1_050);
  history.takeAgents(lanes([7, "d", 1_200]), 1_250);
  const [sketch] = tracksOf(groupNamed(history, "a1"), 0);
  assert.deepEqual(sketch!.stages.map(({ kind, start_ms, end_ms }) => [kind, start_ms, end_ms]), [
    ["prefill", 1_000, 1_200],
    ["decode", 1_200, null],
  ]);
  history.takeAgents(lanes(), 2_000);
  assert.equal(sketch!.end_ms, 2_000);
  history.take([anEndedRequest()], 2_100);
  const tracks = tracksOf(groupNamed(history, "a1"), 0);
  assert.deepEqual(tracks.map((track) => [track.view?.key, track.end_ms]), [[7, 2_200]]);
});

test("a request that leaves the feed while its agent still lists it ends with the list", () => {
  const history = new TimelineHistory();
  history.takeAgents(agents(anAgent({ lanes: [[7, "p", 1_000]] })), 1_000);
  history.take([aRequest()], 1_000);
  history.gone([7], 1_500);
  const [track] = tracksOf(groupNamed(history, "a1"), 0);
  assert.equal(track!.end_ms, null);
  history.takeAgents(agents(anAgent({ lanes: [] })), 1_800);
  assert.equal(track!.end_ms, 1_800);
  history.take([aRequest({ key: 8 })], 1_900);
  history.gone([8], 2_000);
  assert.equal(tracksOf(groupNamed(history, "a1"), 0).find((each) => each.request === 8)!.end_ms, 2_000);
});

test("an agent that is killed and comes back goes on in its lanes", () => {
  const history = new TimelineHistory();
  history.takeAgents(agents(anAgent({ key: 1 })), 1_000);
  history.takeAgents(agents(), 2_000);
  history.takeAgents(agents(anAgent({ key: 5, joined_ms: 3_000 })), 3_100);
  const group = groupNamed(history, "a1");
  assert.equal(history.groups.length, 2);
  assert.deepEqual(group.states.map(({ state, start_ms, end_ms }) => [state, start_ms, end_ms]), [["gone", 2_000, 3_000]]);
  assert.equal(history.groupOf(5), group);
});

test("two agents of one name have lanes of their own", () => {
  const history = new TimelineHistory();
  history.takeAgents(agents(anAgent({ key: 1 }), anAgent({ key: 2 })), 1_000);
  assert.equal(history.groups.length, 3);
});

test("densities have what was before the page was opened, and what the lists say since", () => {
  const history = new TimelineHistory();
  history.begin([anEndedRequest()], [], 3_000);
  history.takeAgents(agents(anAgent({ lanes: [[9, "d", 2_900], [10, "p", 2_900]] })), 3_000);
  history.takeAgents(agents(anAgent({ lanes: [] })), 5_000);
  const { density } = groupNamed(history, "a1");
  assert.ok(Math.abs(density.slots(1, "decode") - 0.8) < 1e-6);
  assert.deepEqual([density.slots(4, "decode"), density.slots(4, "prefill")], [1, 1]);
});

test("old requests are forgotten, and of very many the oldest", () => {
  const history = new TimelineHistory();
  const at = (key: number, ms: number) =>
    anEndedRequest({ key, queue: [], placements: [aPlacement({ at_ms: ms, first_ms: ms + 1, ended_ms: ms + 2, ending: "done" })] });
  history.take([at(1, 1_000)], 1_100);
  history.prune(10_000_000);
  assert.equal(history.size, 0);
  history.take(Array.from({ length: MAX_TRACKS + 5_000 }, (_, place) => at(place + 10, 20_000_000 + place * 3)), 20_300_000);
  history.prune(20_300_000);
  assert.ok(history.size <= MAX_TRACKS && history.size > MAX_TRACKS / 4, String(history.size));
  assert.ok(history.forgotten_ms !== null);
});
