import assert from "node:assert/strict";
import { test } from "node:test";
import { type CachedModel, catalogue, cpuWords, loadWords, MAX_SHOWN_LINES, memoryWords, readAnswers, withPage } from "./machine_words";

const FACTS = {
  system: "Debian",
  kernel: "",
  cpu: "EPYC",
  cores: 96,
  granted_cores: 8,
  busy: 0.5,
  memory_bytes: 2 ** 34,
  memory_available_bytes: 2 ** 33,
  temperature_c: null,
  power_w: 212.4,
  version: "1",
  llama_cpp: "",
  up_s: null,
  agent_up_s: null,
  gpus: [],
};
const MODEL: CachedModel = {
  source: "hf:a/b",
  cache: "c",
  state: "whole",
  path: "/a",
  size_bytes: 1,
  total_bytes: null,
  last_used_s: null,
  in_use: false,
  is_desired: false,
};

test("what a machine does not tell is left out", () => {
  assert.equal(cpuWords(FACTS), "EPYC, 96 cores (8 for the agent)");
  assert.equal(cpuWords({ ...FACTS, cores: null }), "EPYC");
  assert.equal(loadWords(FACTS), "50 % busy, 212 W");
  assert.equal(loadWords({ busy: null, temperature_c: null, power_w: null }), "");
  assert.equal(memoryWords(2 ** 33, 2 ** 34), "8.00 GiB of 16.0 GiB");
  assert.equal(memoryWords(null, null), "");
});

test("a file is listed once, with the deployments that want it", () => {
  const rows = catalogue(
    [
      { agent: "x", models: [{ ...MODEL, is_desired: true }, { ...MODEL, path: "/b", size_bytes: 9 }] },
      { agent: "x.coder", models: [{ ...MODEL, is_desired: true, in_use: true }] },
    ],
    (agent) => (agent === "x" ? "default" : "coder"),
  );
  assert.deepEqual(
    rows.map((row) => [row.path, row.deployments, row.in_use]),
    [
      ["/b", [], false],
      ["/a", ["default", "coder"], true],
    ],
  );
});

test("answers are read line by line, progress and signs of life are no answers", () => {
  const text = `{"agent":"x","progress":{}}\n\n{"agent":"x","answer":{"models":[]}}\n{"agent":"y","problem":"gone","code":502}\n`;
  assert.deepEqual(readAnswers(text), [
    { agent: "x", models: [], problem: null },
    { agent: "y", models: [], problem: "gone" },
  ]);
});

test("lines go on, begin anew with another life, and are bounded", () => {
  const line = (n: number) => ({ n, time: "", level: "info" as const, text: "" });
  const page = { lines: [line(2), line(3)], last: 3, missed: 0, life: "a" };
  assert.deepEqual(withPage([line(1), line(2)], page, true).map((each) => each.n), [1, 2, 3]);
  assert.deepEqual(withPage([line(900)], page, false).map((each) => each.n), [2, 3]);
  const many = Array.from({ length: MAX_SHOWN_LINES }, (_, n) => line(n + 1));
  const next = withPage(many, { ...page, lines: [line(MAX_SHOWN_LINES + 1)] }, true);
  assert.equal(next.length, MAX_SHOWN_LINES);
  assert.equal(next.at(-1)?.n, MAX_SHOWN_LINES + 1);
});
