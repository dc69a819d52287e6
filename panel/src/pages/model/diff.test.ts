import assert from "node:assert/strict";
import { test } from "node:test";
import { newSpec } from "./defaults";
import { costOf, lineDiff, specDiff, stateDiff } from "./diff";
import { type Spec, withValue } from "./spec";

const SPEC: Spec = { ...newSpec("a"), model: { LocalToAgent: "/m.gguf" } };

function having(path: string, value: unknown): Spec {
  return withValue(SPEC, path, value as never) as Spec;
}

test("a change is said with what was and what will be", () => {
  assert.deepEqual(specDiff(SPEC, having("parameters.context_size", 32768)), [
    { path: "parameters.context_size", label: "Context", before: "8,192 tokens", after: "32,768 tokens" },
  ]);
  assert.deepEqual(specDiff(SPEC, having("aliases", ["x", "y"])).map((each) => [each.before, each.after]), [
    ["none", "x, y"],
  ]);
  assert.deepEqual(specDiff(SPEC, having("extras.markers.tool_open", "")).map((each) => [each.before, each.after]), [
    ["the template's own", "no such section"],
  ]);
  assert.deepEqual(specDiff(SPEC, { ...SPEC, slots: null, aliases: [], template: null }), []);
  assert.deepEqual(specDiff(SPEC, { ...SPEC, new_thing: { x: 1 } }).map((each) => each.path), ["new_thing.x"]);
});

test("the dearest field is the class of a change", () => {
  assert.equal(costOf(SPEC, having("priority", 3)), "none");
  assert.equal(costOf(SPEC, having("template", "{{ x }}")), "in_place");
  assert.equal(costOf(SPEC, having("parameters.top_k", 3)), "in_place");
  assert.equal(costOf(SPEC, having("slots", 3)), "context");
  assert.equal(costOf(SPEC, having("parameters.pooling_type", "Mean")), "in_place");
  const embeds = having("parameters.enable_embeddings", true);
  assert.equal(costOf(embeds, withValue(embeds, "parameters.pooling_type", "Mean") as Spec), "context");
  assert.equal(costOf(SPEC, having("extras.engine.lora", ["/a"])), "weights");
  assert.equal(costOf(SPEC, { ...having("parameters.top_k", 3), model: { LocalToAgent: "/n" } }), "weights");
});

test("deployments come, go and change; their order does not matter", () => {
  const b = { ...SPEC, name: "b" };
  assert.deepEqual(stateDiff({ deployments: [SPEC, b] }, { deployments: [b, SPEC] }), []);
  const diff = stateDiff({ deployments: [SPEC, b] }, { deployments: [having("priority", 1), { ...b, name: "c" }] });
  assert.deepEqual(diff[1]?.fields.map((each) => [each.label, each.before, each.after]), [["Source", "none", "/m.gguf"]]);
  assert.deepEqual(
    diff.map((each) => [each.deployment, each.kind, each.cost]),
    [
      ["a", "changed", "none"],
      ["c", "added", null],
      ["b", "removed", null],
    ],
  );
});

test("lines of a template", () => {
  const before = "1\n2\n3\n4\n5\n6\n7";
  assert.deepEqual(
    lineDiff(before, "1\n2\n3\n4x\n5\n6\n7").map((each) => `${each.kind} ${each.number} ${each.text}`),
    ["same 2 2", "same 3 3", "gone 4 4", "new 4 4x", "same 5 5", "same 6 6"],
  );
  assert.deepEqual(lineDiff("", "a").map((each) => each.kind), ["new"]);
  assert.deepEqual(lineDiff("a", "").map((each) => each.kind), ["gone"]);
  assert.deepEqual(lineDiff(before, before).filter((each) => each.kind !== "same"), []);
  const long = Array.from({ length: 2000 }, (_, n) => `x${n}`).join("\n");
  assert.equal(lineDiff(long, long.replaceAll("x", "y")).length, 4000);
});
