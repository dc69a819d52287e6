import assert from "node:assert/strict";
import { test } from "node:test";
import { anEndedRequest, aPlacement, aRequest } from "../timeline/examples";
import { agentsOf, cachedPart, durationMs, firstTokenMs, queueMs, tokensPerSecond } from "./figures";
import { exportName, isFiltered, listPath, matches, NO_FILTER, parseFilter, queryOf } from "./filter";
import { MAX_ROWS, NOTHING, withEnded, withPage } from "./recent";
import { pathOf, positionSteps, speedLine, speedsOf } from "./speed";

test("a filter survives the page's address", () => {
  const filter = { ...NO_FILTER, state: "finished" as const, client: "a&b", ending: "failed" as const, text: "x y" };
  assert.deepEqual(parseFilter(new URLSearchParams(queryOf(filter))), filter);
  assert.deepEqual(queryOf(NO_FILTER), {});
  assert.deepEqual(parseFilter(new URLSearchParams("state=odd&ending=odd")), NO_FILTER);
  assert.ok(isFiltered(filter) && !isFiltered({ ...NO_FILTER, state: "finished" }));
});

test("the list's path has the filter, but for the text", () => {
  const filter = { ...NO_FILTER, state: "finished" as const, client: "a&b", ending: "failed" as const, text: "x" };
  assert.equal(
    listPath(filter, { limit: 100, before: 7 }),
    "api/v2/requests?state=finished&limit=100&client=a%26b&ending=failed&before=7",
  );
  assert.equal(listPath({ ...filter, state: "in_flight" }, { format: "csv" }), "api/v2/requests?state=in_flight&client=a%26b&format=csv");
});

test("a filter lets through what the balancer would list", () => {
  const view = anEndedRequest();
  const finished = { ...NO_FILTER, state: "finished" as const };
  assert.ok(matches(view, finished));
  assert.ok(!matches(view, NO_FILTER));
  assert.ok(matches(view, { ...finished, client: "app", agent: "a1", ending: "done", text: "CHATCMPL-7" }));
  assert.ok(!matches(view, { ...finished, client: "ap" }));
  assert.ok(!matches(view, { ...finished, ending: "failed" }));
  assert.ok(!matches(view, { ...finished, agent: "a2" }));
  assert.ok(!matches(view, { ...finished, text: "no such text" }));
});

test("a file has the state and the time in its name", () => {
  assert.equal(exportName("in_flight", "csv", new Date(0)), "requests-in-flight-1970-01-01-000000Z.csv");
});

test("pages and endings come together, newest first, each request once", () => {
  const view = (key: number) => anEndedRequest({ key });
  let recent = withPage(NOTHING, [view(9), view(8)], 8);
  recent = withEnded(recent, [view(11), view(9), aRequest({ key: 12 })], { ...NO_FILTER, state: "finished" });
  recent = withPage(recent, [view(7), view(6)], null);
  assert.deepEqual(recent.views.map((each) => each.key), [11, 9, 8, 7, 6]);
  assert.equal(recent.next, null);
  assert.equal(withEnded(recent, [view(9)], NO_FILTER), recent);
  assert.equal(withEnded(recent, [view(13)], { ...NO_FILTER, client: "another" }), recent);
});

test("no more rows are kept than the limit, and those that are cut off can be fetched again", () => {
  const views = Array.from({ length: MAX_ROWS + 10 }, (_, place) => anEndedRequest({ key: place + 1 }));
  const recent = withPage(NOTHING, views, null);
  assert.equal(recent.views.length, MAX_ROWS);
  assert.equal(recent.next, recent.views.at(-1)!.key);
});

test("figures of a request that ended", () => {
  const view = anEndedRequest();
  assert.equal(queueMs(view, 9_999), 100);
  assert.equal(durationMs(view, 9_999), 1_300);
  assert.equal(firstTokenMs(view), 300);
  assert.equal(tokensPerSecond(view, 9_999), 50);
  assert.equal(cachedPart(view), 0.25);
});

test("figures of one in flight grow, and unknown ones are null", () => {
  const view = aRequest({ queue: [{ since_ms: 900, until_ms: null, positions: [] }], placements: [], phase: "buffered", position: 3 });
  assert.equal(queueMs(view, 1_900), 1_000);
  assert.equal(tokensPerSecond(view, 1_900), null);
  assert.equal(cachedPart(view), null);
});

test("agents are in the order of placements", () => {
  const on = (agent: string) => aPlacement({ agent });
  assert.deepEqual(agentsOf(aRequest({ placements: [on("a1"), on("a1"), on("a2"), on("a1")] })), ["a1", "a2", "a1"]);
});

test("the speed between two moments, as a line in its stage", () => {
  const speeds = speedsOf([[0, 0], [500, 10], [500, 12], [1_000, 12], [2_000, 52]]);
  assert.deepEqual(speeds.map((each) => each.per_s), [20, 0, 40]);
  assert.deepEqual(speedLine(speeds, 0, 2_000), [[0.125, 0.5], [0.375, 1], [0.75, 0]]);
  assert.deepEqual(speedLine(speeds.slice(0, 1), 0, 2_000), []);
});

test("positions are steps, none before it is the bottom", () => {
  assert.deepEqual(positionSteps([[0, 4], [50, 2]], 0, 100), [[0, 0], [0.5, 0], [0.5, 0.5], [1, 0.5]]);
  assert.deepEqual(positionSteps([[0, 0]], 0, 100), []);
});

test("a path goes through its points", () => {
  assert.equal(pathOf([[0, 1], [0.5, 0]], 100, 10), "M0.0 10.0L50.0 0.0");
});
