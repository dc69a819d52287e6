import assert from "node:assert/strict";
import { test } from "node:test";
import type { LogEntry } from "../../types";
import { readKeyForm } from "../keys/key_form";
import { MAX_ENTRIES, lineOf, matching, merged } from "./log_lines";

function entry(seq: number, level = "warning", fields: Record<string, unknown> = {}): LogEntry {
  return { seq, time: "2026-03-04T12:00:00.000Z", level, logger: "agents", event: `event ${seq}`, fields };
}

test("newer entries follow, each once, up to the limit", () => {
  const known = merged([], [entry(1), entry(2)]);
  assert.deepEqual(
    merged(known, [entry(2), entry(3)]).map((each) => each.seq),
    [1, 2, 3],
  );
  const many = Array.from({ length: MAX_ENTRIES + 10 }, (_, seq) => entry(seq));
  assert.equal(merged([], many).length, MAX_ENTRIES);
});

test("after another start of the balancer the numbers begin anew", () => {
  assert.deepEqual(
    merged([entry(40), entry(41)], [entry(0), entry(1)]).map((each) => each.seq),
    [0, 1],
  );
});

test("level and every word of the search narrow the list", () => {
  const entries = [entry(1, "warning", { agent: "a1" }), entry(2, "error", { agent: "a2" }), entry(3, "critical")];
  const seqs = (found: LogEntry[]) => found.map((each) => each.seq);
  assert.deepEqual(seqs(matching(entries, "error", "")), [2, 3]);
  assert.deepEqual(seqs(matching(entries, "warning", "")), [1]);
  assert.deepEqual(seqs(matching(entries, "all", "AGENT=A2 event")), [2]);
});

test("a line has all fields", () => {
  assert.equal(
    lineOf(entry(1, "error", { agent: "a1", reason: "it was silent", n: 3 })),
    '2026-03-04T12:00:00.000Z error agents event 1 agent=a1 reason="it was silent" n=3',
  );
});

test("a key has a free name, a scope, and deployments that can be", () => {
  const read = (name: string, deployments = "") =>
    readKeyForm({ name, scopes: ["inference"], deployments }, new Set(["app"]));
  assert.deepEqual(read("web", "default, coder default").body.deployments, ["default", "coder"]);
  assert.equal(read("web").problems.size, 0);
  assert.match(read("").problems.get("name") ?? "", /empty/);
  assert.match(read("app").problems.get("name") ?? "", /There is a key/);
  assert.match(read("web", "Big").problems.get("deployments") ?? "", /Big is no deployment/);
  assert.ok(readKeyForm({ name: "x", scopes: [], deployments: "" }, new Set()).problems.has("scopes"));
});
