/** How engines compute: the fields of `extras.engine`. Paths are on the agents. */

import type { FieldSpec } from "./field_spec";

const OWN = "as the agent was started";
const UINT32 = 2 ** 32 - 1;
const PEBIBYTE = 2 ** 50;

const engine = (name: string, field: Omit<FieldSpec, "path" | "cost" | "empty">): FieldSpec => ({
  path: `extras.engine.${name}`,
  cost: name === "lora" ? "weights" : "context",
  empty: OWN,
  ...field,
});

export const ENGINE_FIELDS: readonly FieldSpec[] = [
  engine("unified", { label: "One pool of KV cells", help: "For all slots, in the place of a region for each.", kind: "switch" }),
  engine("flash_attention", { label: "Flash attention", help: "llama.cpp's.", kind: "choice", options: ["auto", "on", "off"] }),
  engine("max_drafts", { label: "Drafts", help: "Tokens guessed ahead and checked in one pass.", kind: "integer", unit: "tokens", low: 0, high: 64 }),
  engine("draft_model", { label: "Draft model", help: "A path on the agents: a small model of the same vocabulary.", kind: "text", high: 4096 }),
  engine("target_pass_ms", { label: "A pass may take", help: "While a sequence waits for its next token.", kind: "number", unit: "ms", low: 1 }),
  engine("stream_interval_ms", { label: "Tokens may wait", help: "For those of the next passes, to be delivered together.", kind: "number", unit: "ms", low: 0, high: 1000 }),
  engine("prefix_store_bytes", { label: "Memory for prefixes", help: "On the host, for prompts whose cells were needed.", kind: "integer", unit: "bytes", low: 0, high: PEBIBYTE }),
  engine("image_cache_bytes", { label: "Memory for images", help: "For what images seen before were encoded to.", kind: "integer", unit: "bytes", low: 0, high: PEBIBYTE }),
  engine("lora", { label: "LoRA adapters", help: "PATH or PATH=SCALE on the agents, one a line.", kind: "lines", high: 128 }),
  engine("split_mode", { label: "Divided among GPUs by", help: "none, layer or row.", kind: "choice", options: ["none", "layer", "row"] }),
  engine("main_gpu", { label: "Main GPU", help: "Used when the model is not divided.", kind: "integer", low: 0, high: 1023 }),
  engine("tensor_split", { label: "Share of each GPU", help: "Numbers with commas, such as 3,1.", kind: "parts", high: 128 }),
  engine("tensor_overrides", { label: "Tensors in a buffer", help: "PATTERN=BUFFER, one a line.", kind: "lines", high: 128 }),
  engine("offload_kqv", { label: "KV cache on the GPU", help: "No leaves it in host memory.", kind: "switch" }),
  engine("use_mmap", { label: "Map the file", help: "No reads it into memory.", kind: "switch" }),
  engine("use_mlock", { label: "Lock in memory", help: "Keeps the model from being swapped out.", kind: "switch" }),
  engine("swa_full", { label: "All sliding-window cells", help: "More memory; prefixes can be reused anywhere.", kind: "switch" }),
  engine("rpc", { label: "RPC servers", help: "host:port of llama.cpp's, one a line.", kind: "lines", high: 128 }),
  engine("rope_scaling", { label: "RoPE scaling", help: "model: as in its metadata.", kind: "choice", options: ["model", "none", "linear", "yarn", "longrope"] }),
  engine("rope_freq_base", { label: "RoPE base", help: "0 for the model's own.", kind: "number", low: 0 }),
  engine("rope_freq_scale", { label: "RoPE scale", help: "0 for the model's own.", kind: "number", low: 0 }),
  engine("yarn_orig_ctx", { label: "YaRN original context", help: "0 for the model's own.", kind: "integer", unit: "tokens", low: 0, high: UINT32 }),
  engine("yarn_ext_factor", { label: "YaRN extrapolation", help: "-1 for the model's own.", kind: "number", low: -1 }),
  engine("yarn_attn_factor", { label: "YaRN attention", help: "-1 for the model's own.", kind: "number", low: -1 }),
  engine("yarn_beta_fast", { label: "YaRN beta fast", help: "-1 for the model's own.", kind: "number", low: -1 }),
  engine("yarn_beta_slow", { label: "YaRN beta slow", help: "-1 for the model's own.", kind: "number", low: -1 }),
];
