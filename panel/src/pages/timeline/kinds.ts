/** How each kind of block looks: a colour and a pattern, so that neither is needed to tell them apart. */

import type { StateSpan } from "./agent_states";
import type { StageKind } from "./stages";

export type BlockKind = StageKind | StateSpan["state"];
export type Pattern = "solid" | "dots" | "upright" | "rungs" | "hatch" | "thick-hatch" | "cross" | "checks";

export interface Look {
  /** In the legend. */
  label: string;
  /** In the middle of a sentence. */
  words: string;
  color: string;
  pattern: Pattern;
}

export const LOOKS: Record<BlockKind, Look> = {
  queued: { label: "Queued", words: "in the queue", color: "--c-queue", pattern: "dots" },
  prepare: { label: "Template, tools, grammar", words: "waits for template, tools and grammar", color: "--c-prepare", pattern: "upright" },
  engine: { label: "Engine's queue", words: "in the engine's queue", color: "--c-engine", pattern: "rungs" },
  cached: { label: "Prefill, cached", words: "prefill, the cached part", color: "--c-prefill", pattern: "hatch" },
  prefill: { label: "Prefill", words: "prefill", color: "--c-prefill", pattern: "solid" },
  decode: { label: "Decode", words: "decode", color: "--c-decode", pattern: "solid" },
  stop: { label: "Stopping", words: "stopping", color: "--c-stop", pattern: "rungs" },
  swap: { label: "Model swap", words: "changes its model", color: "--c-swap", pattern: "checks" },
  failed: { label: "Failed", words: "failed", color: "--c-dead", pattern: "thick-hatch" },
  gone: { label: "Agent gone", words: "gone", color: "--c-dead", pattern: "cross" },
};

export const LEGEND: readonly BlockKind[] = [
  "queued",
  "prepare",
  "engine",
  "cached",
  "prefill",
  "decode",
  "stop",
  "swap",
  "failed",
  "gone",
];
