import assert from "node:assert/strict";
import { test } from "node:test";
import type { LogEntry } from "../../types";
import type { AuditEntry } from "../../types";
import { actsMatching } from "./acts";
import { EMPTY_FORM, readKeyForm } from "../keys/key_form";
import { MAX_ENTRIES, countOf, lineOf, matching, merged } from "./log_lines";

function entry(seq: number, level = "warning", fields: Record<string, unknown> = {}): LogEntry {
  const time = "2026-03-04T12:00:00.000Z";
  return { seq, group: seq, count: 1, first: time, time, level, logger: "agents", event: `event ${seq}`, fields };
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
    readKeyForm({ ...EMPTY_FORM, name, scopes: ["inference"], deployments }, new Set(["app"]));
  assert.deepEqual(read("web", "default, coder default").body.deployments, ["default", "coder"]);
  assert.equal(read("web").problems.size, 0);
  assert.match(read("").problems.get("name") ?? "", /empty/);
  assert.match(read("app").problems.get("name") ?? "", /There is a key/);
  assert.match(read("web", "Big").problems.get("deployments") ?? "", /Big is no deployment/);
  assert.ok(readKeyForm({ ...EMPTY_FORM, name: "x", scopes: [], deployments: "" }, new Set()).problems.has("scopes"));
});

test("a key's limits are whole numbers within their bounds, and nothing is no limit", () => {
  const read = (value: string) =>
    readKeyForm({ ...EMPTY_FORM, name: "web", limits: { ...EMPTY_FORM.limits, requests_per_minute: value } }, new Set());
  assert.equal(read("").body.requests_per_minute, null);
  assert.equal(read(" 60 ").body.requests_per_minute, 60);
  for (const wrong of ["0", "-1", "1.5", "1e3", "1000001", "many"]) {
    assert.match(read(wrong).problems.get("requests_per_minute") ?? "", /from 1 to 1,000,000/);
  }
  assert.equal(readKeyForm({ ...EMPTY_FORM, name: "web", lifetime: "86400" }, new Set()).body.ttl_s, 86400);
  assert.equal("ttl_s" in read("").body, false);
});

test("audit entries are found by who, what and target", () => {
  const did = (seq: number, who: string, action: string, target: string): AuditEntry => ({
    seq,
    who,
    action,
    target,
    time: "2026-03-04T12:00:00Z",
    source: "10.0.0.7",
    before: null,
    after: null,
    revision: null,
    outcome: "done",
    details: {},
  });
  const entries = [did(1, "ops", "key made", "app"), did(2, "ann", "agent drained", "a1"), did(3, "ops", "fleet changed", "")];
  assert.deepEqual(actsMatching(entries, "", "").map((each) => each.seq), [3, 2, 1]);
  assert.deepEqual(actsMatching(entries, "key made", "").map((each) => each.seq), [1]);
  assert.deepEqual(actsMatching(entries, "", "A1").map((each) => each.seq), [2]);
  assert.deepEqual(actsMatching(entries, "", "ops").map((each) => each.seq), [3, 1]);
});

test("those that say the same are one, with a count and a rate", () => {
  const first = { ...entry(1), group: 1 };
  const again = { ...entry(9), group: 1, count: 440, time: "2026-03-04T12:12:00.000Z" };
  assert.deepEqual(merged([first, entry(2)], [again]), [entry(2), again]);
  assert.equal(countOf(again), "440 times, 37 a minute");
  assert.equal(countOf(first), "");
});
