import assert from "node:assert/strict";
import { test } from "node:test";
import { downloadText, issueText, matches, modelName, nextAttempt, revisionOf, stateOf } from "./agent_facts";
import { exampleAgent } from "./example_agent";

test("trouble and orders come before what the agent does", () => {
  assert.equal(stateOf(exampleAgent(), 0).word, "serving");
  const ejected = exampleAgent({ ejected_until_ms: 5000, is_drained: true });
  assert.deepEqual(stateOf(ejected, 1500), { tone: "bad", word: "ejected", detail: "gets requests again in 4 s" });
  assert.equal(stateOf(ejected, 6000).word, "drained");
  assert.equal(stateOf(exampleAgent({ is_drained: true, slots_processing: 2 }), 0).detail, "2 still running");
  assert.equal(stateOf(exampleAgent({ is_accepting: false }), 0).tone, "warn");
  assert.equal(stateOf(exampleAgent({ phase: "loading", progress: 0.256 }), 0).word, "loading 26 %");
});

test("an agent of Paddler has no phase, and its status says the same", () => {
  const paddler = { protocol: "paddler-4.1", phase: null } as const;
  assert.equal(stateOf(exampleAgent(paddler), 0).word, "serving");
  assert.equal(stateOf(exampleAgent({ ...paddler, download_filename: "m.gguf" }), 0).word, "downloading");
  assert.equal(stateOf(exampleAgent({ ...paddler, state_application_status: "AttemptedAndNotAppliable" }), 0).word, "failed");
  assert.equal(stateOf(exampleAgent({ ...paddler, slots_total: 0 }), 0).word, "no model");
});

test("an issue has a title, what it is about, and advice, also one that is new", () => {
  const template = issueText({ ChatTemplateDoesNotCompile: { error: "line 3", model_path: { model_path: "m.gguf" }, template_content: "x" } });
  assert.equal(template.subject, "line 3 · m.gguf");
  assert.equal(issueText({ GpuIsOnFire: {} }).title, "Gpu is on fire");
  assert.match(nextAttempt(exampleAgent({ state_application_status: "Stuck" })), /long pauses/);
});

test("models, revisions and downloads in short", () => {
  assert.equal(modelName("C:\\models\\a.gguf"), "a.gguf");
  assert.equal(modelName(null), null);
  assert.equal(revisionOf(exampleAgent())?.isOld, false);
  assert.equal(revisionOf(exampleAgent({ wanted_state: "b" }))?.isOld, true);
  assert.equal(revisionOf(exampleAgent({ served_state: null })), null);
  const download = { source: "hub", phase: "downloading", file_index: 2, file_count: 3, bytes_per_s: 1 << 20, remaining_s: 65 };
  assert.equal(
    downloadText(exampleAgent({ download, download_current: 2 ** 30, download_total: 2 ** 31 })),
    "1.00 GiB of 2.00 GiB · 1.00 MiB/s · 1 min 05 s left · file 2 of 3",
  );
});

test("an agent is found by all the words, in any of its fields", () => {
  assert.ok(matches(exampleAgent(), ["gpu=yes", "chat"]));
  assert.ok(!matches(exampleAgent(), ["gpu=yes", "coder"]));
});
