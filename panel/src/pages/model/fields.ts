/** The fields of a deployment: where they stand, what they take, and what a change of one costs. */

import { ENGINE_FIELDS } from "./engine_fields";
import type { FieldSpec } from "./field_spec";
import type { ChangeClass } from "./spec";

export interface Group {
  id: string;
  title: string;
  help: string;
  fields: readonly FieldSpec[];
}

const TOKENS = 2 ** 31 - 1;
const INT32 = 2 ** 31 - 1;
const UINT32 = 2 ** 32 - 1;
const SAFE = Number.MAX_SAFE_INTEGER;
const CACHE = ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL"];

const parameter = (name: string, cost: ChangeClass, field: Omit<FieldSpec, "path" | "cost">): FieldSpec => ({
  path: `parameters.${name}`,
  cost,
  ...field,
});

const rule = (name: string, field: Omit<FieldSpec, "path" | "cost">): FieldSpec => ({
  path: `rollout.${name}`,
  cost: "none",
  ...field,
});

const marker = (name: string, label: string, help: string): FieldSpec => ({
  path: `extras.markers.${name}`,
  label,
  help,
  kind: "marker",
  high: 256,
  cost: "in_place",
});

export const MODEL_FIELDS: readonly FieldSpec[] = [
  {
    path: "model",
    label: "Source",
    help: "org/repo of the hub, an absolute path on the agents, https://…, store://…, or none.",
    kind: "source",
    cost: "weights",
  },
  {
    path: "projection",
    label: "Projection",
    help: "What lets the model see images; the same forms, or none.",
    kind: "source",
    empty: "none",
    cost: "weights",
  },
];

export const TEMPLATE_FIELD: FieldSpec = {
  path: "template",
  label: "Chat template",
  help: "Jinja, in the place of the model's own.",
  kind: "template",
  empty: "the model's own",
  cost: "in_place",
};

export const GROUPS: readonly Group[] = [
  {
    id: "loading",
    title: "Loading",
    help: "A change starts engines anew, over the same weights.",
    fields: [
      parameter("context_size", "context", {
        label: "Context",
        help: "Shared by the slots of an agent; 0 for what the model was trained with, for each slot.",
        kind: "integer",
        unit: "tokens",
        low: 0,
        high: TOKENS,
        usual: [256, 1_048_576],
      }),
      {
        path: "extras.auto.context_size",
        label: "Context as large as memory allows",
        help: "Each agent of this version chooses; the number above is for the others.",
        kind: "flag",
        cost: "context",
      },
      parameter("n_gpu_layers", "context", {
        label: "Layers on the GPU",
        help: "-1 for all of them.",
        kind: "integer",
        low: -INT32 - 1,
        high: INT32,
        usual: [-1, 1000],
      }),
      {
        path: "extras.auto.n_gpu_layers",
        label: "As many layers as fit",
        help: "Each agent of this version chooses.",
        kind: "flag",
        cost: "context",
      },
      parameter("n_batch", "context", {
        label: "Batch",
        help: "Tokens decoded in one pass.",
        kind: "integer",
        unit: "tokens",
        low: 0,
        high: TOKENS,
        usual: [32, 65_536],
      }),
      parameter("k_cache_dtype", "context", {
        label: "Keys of the KV cache",
        help: "Quantised ones save memory and cost some quality.",
        kind: "choice",
        options: CACHE,
      }),
      parameter("v_cache_dtype", "context", {
        label: "Values of the KV cache",
        help: "As for keys.",
        kind: "choice",
        options: CACHE,
      }),
    ],
  },
  {
    id: "sampling",
    title: "Sampling",
    help: "What requests that say nothing get. A change applies in place.",
    fields: [
      parameter("temperature", "in_place", {
        label: "Temperature",
        help: "0 always takes the likeliest token.",
        kind: "number",
        usual: [0, 2],
      }),
      parameter("top_k", "in_place", {
        label: "Top-k",
        help: "Sample from this many tokens; 0 for all.",
        kind: "integer",
        unit: "tokens",
        low: -INT32 - 1,
        high: INT32,
        usual: [0, 1_000_000],
      }),
      parameter("top_p", "in_place", {
        label: "Top-p",
        help: "Sample from the likeliest tokens that add up to this.",
        kind: "number",
        usual: [0, 1],
      }),
      parameter("min_p", "in_place", {
        label: "Min-p",
        help: "Drop tokens below this fraction of the likeliest one.",
        kind: "number",
        usual: [0, 1],
      }),
      parameter("penalty_repeat", "in_place", {
        label: "Repeat penalty",
        help: "For tokens seen before; 1 is none.",
        kind: "number",
        usual: [0.5, 2],
      }),
      parameter("penalty_frequency", "in_place", {
        label: "Frequency penalty",
        help: "For each time a token was seen; 0 is none.",
        kind: "number",
        usual: [-2, 2],
      }),
      parameter("penalty_presence", "in_place", {
        label: "Presence penalty",
        help: "Once for every token seen; 0 is none.",
        kind: "number",
        usual: [-2, 2],
      }),
      parameter("penalty_last_n", "in_place", {
        label: "Penalties look back",
        help: "-1 for the whole context, 0 for not at all.",
        kind: "integer",
        unit: "tokens",
        low: -INT32 - 1,
        high: INT32,
        usual: [-1, 1_048_576],
      }),
    ],
  },
  {
    id: "embeddings",
    title: "Embeddings and images",
    help: "A model makes embeddings or tokens, not both.",
    fields: [
      parameter("enable_embeddings", "context", {
        label: "Make embeddings",
        help: "Requests for tokens are refused then.",
        kind: "flag",
      }),
      parameter("pooling_type", "context", {
        label: "Pooling",
        help: "How the tokens of a document become one embedding; Rank is for rerankers.",
        kind: "choice",
        options: ["Unspecified", "None", "Mean", "Cls", "Last", "Rank"],
      }),
      parameter("embedding_batch_size", "in_place", {
        label: "Documents at a time",
        help: "In one part of a large request.",
        kind: "integer",
        unit: "documents",
        low: 1,
        high: SAFE,
        usual: [1, 4096],
      }),
      parameter("image_resize_to_fit", "in_place", {
        label: "Images",
        help: "The longer side is made no longer than this.",
        kind: "integer",
        unit: "pixels",
        low: 1,
        high: UINT32,
        usual: [64, 8192],
      }),
    ],
  },
  {
    id: "serving",
    title: "Where and how",
    help: "Agents are sent nothing for these, but for slots.",
    fields: [
      {
        path: "aliases",
        label: "Aliases",
        help: "Other names that requests may use, one a line, 16 at most. No two deployments share a name.",
        kind: "lines",
        high: 16,
        empty: "none",
        cost: "none",
      },
      {
        path: "where",
        label: "Where",
        help: "Conditions that an agent must meet, one a line: label=value, or agent=NAME.",
        kind: "lines",
        high: 16,
        empty: "everywhere",
        cost: "none",
      },
      {
        path: "replicas",
        label: "Replicas",
        help: "Agents that serve it: all, a number, or min..max. With 0..n it is loaded when a request asks for it.",
        kind: "replicas",
        high: 4096,
        cost: "none",
      },
      {
        path: "slots",
        label: "Slots",
        help: "Requests at a time on each agent.",
        kind: "integer",
        low: 1,
        high: 4096,
        empty: "as many as the agent has",
        cost: "context",
      },
      {
        path: "priority",
        label: "Priority",
        help: "Of two that do not fit together the larger one is loaded.",
        kind: "integer",
        low: -1000,
        high: 1000,
        empty: "0",
        cost: "none",
      },
      {
        path: "idle_ttl",
        label: "Unload when idle",
        help: "Agents beyond the least number of replicas unload it after this time without a request.",
        kind: "number",
        unit: "s",
        low: 0,
        high: 31_536_000,
        empty: "never",
        cost: "none",
      },
    ],
  },
  {
    id: "adapters",
    title: "Adapters",
    help: "LoRA adapters, loaded beside the weights; a request or a preset chooses them.",
    fields: [
      {
        path: "extras.adapters",
        label: "LoRA adapters",
        help: "One a line: its name, a scale if it is not 1, and its source.",
        kind: "adapters",
        empty: "none",
        cost: "weights",
      },
    ],
  },
  {
    id: "presets",
    title: "Presets",
    help: "Models with names of their own over these weights. A change loads nothing and holds from the next request on.",
    fields: [
      {
        path: "presets",
        label: "Presets",
        help: "No two deployments, aliases and presets share a name. The Prompt page tries two side by side.",
        kind: "presets",
        high: 64,
        empty: "none",
        cost: "none",
      },
    ],
  },
  {
    id: "rollout",
    title: "Rollout",
    help: "How a change goes from agent to agent.",
    fields: [
      rule("canary", {
        label: "Canaries",
        help: "Agents that go first; 0 for none.",
        kind: "integer",
        unit: "agents",
        low: 0,
        high: 4096,
      }),
      rule("min_ready_s", {
        label: "They must serve",
        help: "Without a crash, before the others follow.",
        kind: "number",
        unit: "s",
        low: 0,
        high: 86_400,
      }),
      rule("max_unavailable", {
        label: "Away at the same time",
        help: "Agents that may be without it.",
        kind: "integer",
        unit: "agents",
        low: 1,
        high: 4096,
      }),
      rule("max_unavailable_percent", {
        label: "… or of all agents",
        help: "At least one; it takes the place of the number.",
        kind: "integer",
        unit: "%",
        low: 1,
        high: 100,
        empty: "the number counts",
      }),
      rule("min_capacity", {
        label: "Capacity that stays",
        help: "A step that leaves fewer slots waits.",
        kind: "integer",
        unit: "slots",
        low: 0,
        high: 1_000_000,
      }),
      rule("drain_deadline_s", {
        label: "Running answers may take",
        help: "On an agent whose turn it is.",
        kind: "number",
        unit: "s",
        low: 0,
        high: 86_400,
      }),
      rule("progress_deadline_s", {
        label: "Fails without progress in",
        help: "No agent went a step further.",
        kind: "number",
        unit: "s",
        low: 1,
        high: 604_800,
      }),
      rule("on_failure", {
        label: "When it fails",
        help: "rollback: back to the last good state. pause: you decide.",
        kind: "choice",
        options: ["rollback", "pause"],
      }),
      rule("mixed", {
        label: "Old and new together",
        help: "allow: both answer. hold: agents with the old state get no work once one has the new.",
        kind: "choice",
        options: ["allow", "hold"],
      }),
      rule("prefetch", {
        label: "Fetch the files first",
        help: "On all agents, before the first one changes.",
        kind: "flag",
      }),
    ],
  },
  {
    id: "engine",
    title: "Engine",
    help: "How engines compute, over the flags of their agents. Paddler's own agents get none of this.",
    fields: ENGINE_FIELDS,
  },
  {
    id: "markers",
    title: "Sections of answers",
    help: "Texts that begin and end reasoning and tool calls, over those of the template. A change applies in place.",
    fields: [
      marker("reasoning_open", "Reasoning begins", "Such as <think>."),
      marker("reasoning_close", "Reasoning ends", "Empty: there is no such section."),
      marker("tool_open", "A tool call begins", "Empty: there is no such section."),
      marker("tool_close", "A tool call ends", "Such as </tool_call>."),
    ],
  },
];

export const FIELDS: readonly FieldSpec[] = [
  ...MODEL_FIELDS,
  TEMPLATE_FIELD,
  ...GROUPS.flatMap((group) => group.fields),
];

const BY_PATH = new Map(FIELDS.map((field) => [field.path, field]));

export function fieldAt(path: string): FieldSpec | undefined {
  return BY_PATH.get(path);
}
