import assert from "node:assert/strict";
import { test } from "node:test";
import type { Json } from "./spec";
import { draftsIn, NEW_PRESET, shownPresets, takenPresets, textOfDrafts } from "./presets";

const PRESETS: Json = [
  { name: "terse:8b", system: "Be brief.", system_place: "instead", thinking: false, sampling: { temperature: 0.2 } },
  { name: "plain" },
];

test("presets go through the form and come back as they were", () => {
  assert.deepEqual(takenPresets(shownPresets(PRESETS)), PRESETS);
  assert.equal(shownPresets([]), "");
  assert.equal(shownPresets(undefined), "");
  assert.deepEqual(takenPresets(""), []);
  assert.deepEqual(draftsIn(shownPresets(PRESETS)).map((each) => each.thinking), ["no", ""]);
});

test("what is wrong with a preset is said with its name", () => {
  const wrong = (change: object, words: RegExp): void =>
    assert.throws(() => takenPresets(textOfDrafts([{ ...NEW_PRESET, name: "terse", ...change }])), words);
  wrong({ name: "two words" }, /“two words” cannot name a preset/);
  wrong({ name: "default" }, /cannot name a preset/);
  wrong({ others: "{" }, /terse: the other settings are no JSON/);
  wrong({ others: "[1]" }, /terse: the other settings must be an object/);
  wrong({ others: '{"system": "x"}' }, /system has a field of its own/);
  const twice = textOfDrafts([{ ...NEW_PRESET, name: "a" }, { ...NEW_PRESET, name: "a" }]);
  assert.throws(() => takenPresets(twice), /Two presets are called a/);
  const many = textOfDrafts(Array.from({ length: 65 }, (_, n) => ({ ...NEW_PRESET, name: `p${n}` })));
  assert.throws(() => takenPresets(many), /65 presets, the limit is 64/);
});
