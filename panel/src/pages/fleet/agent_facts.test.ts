import assert from "node:assert/strict";
import { test } from "node:test";
import { downloadText, issueText, matches, modelName, nextAttempt, revisionOf, stateOf } from "./agent_facts";
import { exampleAgent } from "./example_agent";

test("the balancer says what is true, and an ejection is counted down", () => {
  assert.equal(stateOf(exampleAgent(), 0).word, "serving");
  const ejected = exampleAgent({ ejected_until_ms: 5000 });
  assert.deepEqual(stateOf(ejected, 1500), { tone: "bad", word: "ejected", detail: "gets requests again in 4 s" });
  assert.equal(stateOf(ejected, 6000).word, "serving");
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
  assert.deepEqual(revisionOf(exampleAgent()), { word: "revision 3", isOld: false });
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
