import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../../core/api";
import type { Agent, HubModels } from "../../types";
import { newSpec } from "./defaults";
import { type DeviceFit, type FitReport, fitQuestion, hostsFor, optionValues, verdictOf, verdictOfError } from "./fit";
import { chosenQuantization, hubSource, projectionFor } from "./hub";
import type { Spec } from "./spec";

const GIB = 2 ** 30;

function device(needed: number, available: number | null, name = "host"): DeviceFit {
  const rest = { weights: needed, kv: 0, compute: 0, projection: 0, draft: 0, other: 0, total: null };
  return { device: name, ...rest, needed, free_now: null, free_after: null, reserve: 0, limit: null, available };
}

function report(fits: boolean | null, devices: DeviceFit[], problem: string | null = null): FitReport {
  return {
    fits,
    problem,
    architecture: "llama",
    file_bytes: 1,
    context_size: 8192,
    n_ctx_train: 8192,
    slots: 4,
    n_gpu_layers: 0,
    n_layers: 10,
    k_cache_dtype: "Q8_0",
    v_cache_dtype: "Q8_0",
    chosen: [],
    devices,
    options: [],
  };
}

test("green, amber and red, with the numbers of the tightest device", () => {
  const roomy = verdictOf(report(true, [device(GIB, 16 * GIB), device(4 * GIB, 10 * GIB, "CUDA0")]));
  assert.deepEqual([roomy.tone, roomy.text], ["ok", "4.00 GiB of 10.0 GiB (CUDA0)"]);
  assert.equal(verdictOf(report(true, [device(9.5 * GIB, 10 * GIB)])).tone, "warn");
  assert.deepEqual([verdictOf(report(null, [device(GIB, null)], "not known")).tone], ["warn"]);
  const large = verdictOf(report(false, [device(20 * GIB, 10 * GIB)], "long words"));
  assert.deepEqual([large.tone, large.text], ["bad", "20.0 GiB of 10.0 GiB (memory)"]);
  assert.equal(verdictOfError(new ApiError(422, "no such tensor")).tone, "bad");
  assert.deepEqual(verdictOfError(new ApiError(502, "cannot be said")).word, "unknown");
});

test("the question has every parameter, and the extras and slots of the deployment", () => {
  const spec: Spec = { ...newSpec("a"), parameters: { context_size: 1 }, extras: { engine: { unified: true } }, slots: 2 };
  const question = fitQuestion(spec) as { state: { inference_parameters: Record<string, unknown> }; slots: number };
  assert.equal(question.state.inference_parameters["context_size"], 1);
  assert.equal(question.state.inference_parameters["n_batch"], 2048);
  assert.equal(question.slots, 2);
});

test("only hosts that meet all conditions are asked, each once", () => {
  const agent = (id: string, host: string, labels: Record<string, string>): Agent =>
    ({ id, host, name: id, label: id, labels }) as unknown as Agent;
  const agents = [agent("b", "b", { gpu: "yes" }), agent("a", "a", { gpu: "yes" }), agent("a2", "a", {}), agent("c", "c", {})];
  const named = (where: string[]): string[] => hostsFor(agents, { ...newSpec("x"), where }).map((each) => each.id);
  assert.deepEqual(named([]), ["a", "b", "c"]);
  assert.deepEqual(named(["gpu=yes"]), ["a", "b"]);
  assert.deepEqual(named(["gpu=yes", "agent=b"]), ["b"]);
});

test("an option sets the fields that it names", () => {
  const option = { context_size: 4096, slots: 1, n_gpu_layers: 5, k_cache_dtype: "Q8_0", v_cache_dtype: "Q8_0" };
  assert.deepEqual(optionValues({ ...option, changes: ["context-size", "slots"] }), {
    words: "context 4,096, 1 slot",
    values: { "parameters.context_size": "4096", "extras.auto.context_size": false, slots: "1" },
  });
  assert.equal(optionValues({ ...option, changes: ["kv-cache-dtype"] }).values["parameters.v_cache_dtype"], "Q8_0");
});

test("a quantisation is chosen by its name, or is the default", () => {
  const file = { path: "m-Q8_0.gguf", size_bytes: 1 };
  const models: HubModels = {
    repo: "org/repo",
    revision: "main",
    commit: "c0ffee",
    quantizations: [
      { name: "Q4_K_M", files: [{ path: "m-Q4_K_M.gguf", size_bytes: 1 }], size_bytes: 1, is_default: true },
      { name: "Q8_0", files: [file], size_bytes: 1, is_default: false },
    ],
    projections: [],
  };
  const wanted = { repo_id: "org/repo", quantisation: null, revision: "main" };
  assert.equal(chosenQuantization(models, wanted)?.name, "Q4_K_M");
  assert.equal(chosenQuantization(models, { ...wanted, quantisation: "q8_0" })?.name, "Q8_0");
  assert.equal(chosenQuantization(models, { ...wanted, quantisation: "F16" }), undefined);
  assert.equal(hubSource(models, file.path), "hf:org/repo/m-Q8_0.gguf@c0ffee");
});

test("the projection that belongs to a model", () => {
  const of = (model: string, ...paths: string[]): string | undefined =>
    projectionFor(model, paths.map((path) => ({ path, size_bytes: 1 })))?.path;
  assert.equal(of("m-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf"), "mmproj-Q8_0.gguf");
  assert.equal(of("big/m-Q8_0.gguf", "mmproj-Q8_0.gguf", "big/mmproj-F16.gguf", "x/mmproj.gguf"), "big/mmproj-F16.gguf");
  assert.equal(of("m.gguf", "x/mmproj.gguf"), undefined);
});
