import assert from "node:assert/strict";
import { test } from "node:test";
import { newSpec } from "./defaults";
import { FIELDS, fieldAt } from "./fields";
import { refusalOf } from "./refusal";
import { type Spec, isSame, valueAt } from "./spec";
import { changedPaths, nameProblem, problemsOf, rebased, specOf, type Value, valuesOf, warningOf } from "./values";

const SPEC: Spec = {
  ...newSpec("coder"),
  model: { LocalToAgent: "/m.gguf" },
  aliases: ["gpt-4o", "x"],
  idle_ttl: null,
  slots: null,
  extras: { engine: { unified: true, lora: ["/a.gguf=0.5"] }, markers: { reasoning_close: "" } },
  of_a_newer_balancer: { stays: 1 },
};

function changed(path: string, value: Value): Spec {
  return specOf({ ...valuesOf(SPEC), [path]: value }, SPEC);
}

function problem(path: string, value: Value): string | undefined {
  return problemsOf({ ...valuesOf(SPEC), [path]: value })[path];
}

test("what nobody touched is sent as it came", () => {
  assert.deepEqual(specOf(valuesOf(SPEC), SPEC), SPEC);
  assert.deepEqual(problemsOf(valuesOf(SPEC)), {});
  const spec = changed("parameters.context_size", "4096");
  assert.equal(valueAt(spec, "parameters.context_size"), 4096);
  assert.equal(valueAt(spec, "of_a_newer_balancer.stays"), 1);
  assert.equal(valueAt(SPEC, "parameters.context_size"), 8192);
});

test("no field is ever sent as null", () => {
  for (const field of FIELDS) {
    if (field.empty === undefined) {
      continue;
    }
    const spec = changed(field.path, "");
    assert.ok(valueAt(spec, field.path) === undefined, field.path);
    const last = field.path.split(".").at(-1) ?? "";
    const parent = field.path.includes(".") ? valueAt(spec, field.path.slice(0, -last.length - 1)) : spec;
    const isAsBefore = isSame(valueAt(SPEC, field.path), undefined);
    assert.ok(isAsBefore || parent === undefined || !(last in (parent as object)), field.path);
  }
});

test("an emptied number is an error, and so is one out of its range", () => {
  assert.match(problem("parameters.context_size", "") ?? "", /Give a whole number 0 to 2,147,483,647 tokens/);
  assert.match(problem("parameters.context_size", "-1") ?? "", /out of range/);
  assert.match(problem("parameters.context_size", "2147483648") ?? "", /out of range/);
  assert.match(problem("parameters.context_size", "8k") ?? "", /no whole number/);
  assert.match(problem("parameters.temperature", "0,8") ?? "", /no number/);
  assert.match(problem("parameters.temperature", "1e39") ?? "", /out of range/);
  assert.match(problem("slots", "0") ?? "", /1 to 4,096/);
  assert.equal(problem("slots", ""), undefined);
  assert.match(problem("rollout.progress_deadline_s", "0.5") ?? "", /1 to 604,800 s/);
  assert.match(problem("extras.engine.target_pass_ms", "0") ?? "", /1 ms or more/);
  assert.match(problem("extras.engine.stream_interval_ms", "1001") ?? "", /0 to 1,000 ms/);
  assert.match(problem("parameters.embedding_batch_size", "0") ?? "", /out of range/);
});

test("lists, replicas and sources are checked entry by entry", () => {
  assert.deepEqual(valueAt(changed("aliases", " a \n\nb"), "aliases"), ["a", "b"]);
  assert.match(problem("aliases", "default") ?? "", /cannot be an alias/);
  assert.match(problem("aliases", "a b") ?? "", /cannot be an alias/);
  assert.match(problem("aliases", Array.from({ length: 17 }, (_, n) => `a${n}`).join("\n")) ?? "", /limit is 16/);
  assert.match(problem("where", "gpu") ?? "", /label=value/);
  assert.equal(problem("where", "gpu=yes\nagent=the big one"), undefined);
  assert.equal(valueAt(changed("replicas", "2"), "replicas"), 2);
  assert.equal(valueAt(changed("replicas", "0..3"), "replicas"), "0..3");
  assert.match(problem("replicas", "3..1") ?? "", /first number is larger/);
  assert.match(problem("replicas", "some") ?? "", /min\.\.max/);
  assert.match(problem("replicas", "4097") ?? "", /limit is 4,096/);
  assert.match(problem("model", "org/repo") ?? "", /Choose one of the files of org\/repo/);
  assert.deepEqual(valueAt(changed("extras.engine.tensor_split", "3, 1"), "extras.engine.tensor_split"), [3, 1]);
  assert.match(problem("extras.engine.tensor_split", "3,-1") ?? "", /0 or more/);
});

test("an empty marker is not the template's own", () => {
  assert.equal(valuesOf(SPEC)["extras.markers.reasoning_close"], "");
  assert.equal(valuesOf(SPEC)["extras.markers.tool_open"], null);
  assert.equal(valueAt(changed("extras.markers.tool_open", ""), "extras.markers.tool_open"), "");
  assert.equal(valueAt(changed("extras.markers.reasoning_close", null), "extras.markers"), undefined);
});

test("a switch is on, off, or the agent's own", () => {
  assert.equal(valueAt(changed("extras.engine.use_mmap", "no"), "extras.engine.use_mmap"), false);
  assert.equal(valueAt(changed("extras.engine.unified", ""), "extras.engine.unified"), undefined);
  assert.equal(valueAt(changed("extras.auto.context_size", true), "extras.auto.context_size"), true);
  assert.equal(valueAt(changed("parameters.enable_embeddings", false), "parameters.enable_embeddings"), false);
});

test("changes go on top of what another operator stored", () => {
  const theirs: Spec = { ...SPEC, priority: 5, parameters: { ...(SPEC["parameters"] as object), top_k: 10 } };
  const mine = { ...valuesOf(SPEC), "parameters.context_size": "4096", "parameters.top_k": "20" };
  const { values, collisions } = rebased(mine, SPEC, theirs);
  assert.deepEqual(collisions, ["parameters.top_k"]);
  const spec = specOf(values, theirs);
  assert.equal(valueAt(spec, "priority"), 5);
  assert.equal(valueAt(spec, "parameters.top_k"), 20);
  assert.equal(valueAt(spec, "parameters.context_size"), 4096);
  assert.deepEqual(changedPaths(values, valuesOf(theirs)), ["parameters.context_size", "parameters.top_k"]);
});

test("what is unusual only warns", () => {
  const field = fieldAt("parameters.temperature");
  assert.ok(field);
  assert.match(warningOf(field, "7") ?? "", /Unusual: most are 0 to 2/);
  assert.equal(warningOf(field, "0.8"), null);
  assert.equal(warningOf(field, "hot"), null);
  const context = fieldAt("parameters.context_size");
  assert.ok(context);
  assert.equal(warningOf(context, "0"), null);
});

test("a name of a deployment", () => {
  assert.equal(nameProblem("coder-2.x", []), null);
  assert.match(nameProblem("Coder", []) ?? "", /1 to 63/);
  assert.match(nameProblem("", []) ?? "", /1 to 63/);
  assert.match(nameProblem("coder", ["coder"]) ?? "", /already/);
});

test("a refusal names the field of the form", () => {
  assert.deepEqual(
    refusalOf("Json deserialize error: deployment 'b': the alias 'x' is a name of 'a' already @ $.state.deployments[1].aliases[0]"),
    { text: "Deployment 'b': the alias 'x' is a name of 'a' already", deployment: 1, field: "aliases" },
  );
  assert.equal(refusalOf("bad @ $.state.deployments[0].parameters.context_size").field, "parameters.context_size");
  assert.equal(refusalOf("bad @ $.state.deployments[0].model.LocalToAgent").field, "model");
  assert.equal(refusalOf("bad @ $.state.deployments[0].extras.engine.lora[3]").field, "extras.engine.lora");
  assert.equal(refusalOf("bad @ $.state.deployments[0].where['a b']").field, "where");
  assert.deepEqual(refusalOf("bad @ $.note"), { text: "Bad", deployment: null, field: null });
  assert.deepEqual(refusalOf("disk full"), { text: "Disk full", deployment: null, field: null });
});
