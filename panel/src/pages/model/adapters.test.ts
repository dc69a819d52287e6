import assert from "node:assert/strict";
import { test } from "node:test";

import { shownAdapters, takenAdapters } from "./adapters";
import type { Json } from "./spec";

const ADAPTERS: Json[] = [
  { name: "sql", source: { LocalToAgent: "/a folder/sql.gguf" }, scale: 0.5 },
  { name: "poems", source: { HuggingFace: { filename: "p.gguf", repo_id: "org/repo", revision: "main" } }, scale: 1 },
];

test("adapters go through the form and come back as they were", () => {
  const text = shownAdapters(ADAPTERS);
  assert.equal(text, "sql 0.5 /a folder/sql.gguf\npoems hf:org/repo/p.gguf@main");
  assert.deepEqual(takenAdapters(text), ADAPTERS);
  assert.equal(shownAdapters(undefined), "");
  assert.deepEqual(takenAdapters(" \n"), []);
});

test("what is wrong with an adapter is said", () => {
  assert.throws(() => takenAdapters("a /a\na /b"), /Two adapters are called a/);
  assert.throws(() => takenAdapters("a 101 /a"), /scale 101 is out of range/);
  assert.throws(() => takenAdapters("a org/repo"), /name one file/);
  assert.throws(() => takenAdapters("a none"), /name one file/);
  assert.throws(() => takenAdapters("a b c"), /“b c” is no absolute path/);
  assert.throws(() => takenAdapters("_a /a"), /cannot name an adapter/);
  assert.throws(() => takenAdapters(Array.from({ length: 65 }, (_, i) => `a${i} /a`).join("\n")), /65 adapters, the limit is 64/);
});
