import assert from "node:assert/strict";
import { test } from "node:test";
import { MOST_PROMPT_CHARS, MOST_PROMPTS, readPrompts, savingProblem, withPrompt } from "./saved";

const one = { name: "b", system: "s", text: "t" };

test("what was kept is read as far as it makes sense", () => {
  assert.deepEqual(readPrompts(null), []);
  assert.deepEqual(readPrompts("{"), []);
  assert.deepEqual(readPrompts('{"a":1}'), []);
  assert.deepEqual(readPrompts(JSON.stringify([one, null, 7, { name: "x" }])), [one]);
});

test("a name is taken once, and there is a limit", () => {
  const two = withPrompt([one], { name: "a", system: "", text: "" });
  assert.deepEqual(two.map((each) => each.name), ["a", "b"]);
  assert.deepEqual(withPrompt(two, { ...one, text: "new" })[1]?.text, "new");
  const full = Array.from({ length: MOST_PROMPTS }, (_, index) => ({ ...one, name: `p${index}` }));
  assert.equal(savingProblem("p3", "", "", full), null);
  assert.match(savingProblem("more", "", "", full) ?? "", /50 are saved already/);
  assert.equal(savingProblem("  ", "", "", []), "Give it a name.");
  assert.match(savingProblem("x", "", "a".repeat(MOST_PROMPT_CHARS + 1), []) ?? "", /limit is 40000/);
});
