/** What is computed from a request: durations, speed, cached part. Pure; null is unknown. */

import type { Placement, RequestView } from "../../types";

/** All of its stays in the queue together. */
export function queueMs(view: RequestView, now_ms: number): number {
  return view.queue.reduce((sum, stay) => sum + Math.max(0, (stay.until_ms ?? view.ended_ms ?? now_ms) - stay.since_ms), 0);
}

export function durationMs(view: RequestView, now_ms: number): number {
  return Math.max(0, (view.ended_ms ?? now_ms) - view.arrived_ms);
}

/** From the arrival to the first result. */
export function firstTokenMs(view: RequestView): number | null {
  return view.first_result_ms === null ? null : Math.max(0, view.first_result_ms - view.arrived_ms);
}

/** Generated tokens per second since the first one, which prefill had paid for. */
export function tokensPerSecond(view: RequestView, now_ms: number): number | null {
  if (view.first_result_ms === null || view.tokens < 2) {
    return null;
  }
  const ms = (view.ended_ms ?? now_ms) - view.first_result_ms;
  return ms > 0 ? ((view.tokens - 1) * 1000) / ms : null;
}

/** The newest placement with figures of its prompt. */
function measured(view: RequestView): Placement | undefined {
  return view.placements.findLast((placement) => placement.prompt_tokens !== null);
}

export function promptTokens(view: RequestView): number | null {
  return measured(view)?.prompt_tokens ?? null;
}

/** 0..1. */
export function cachedPart(view: RequestView): number | null {
  const placement = measured(view);
  return placement?.prompt_tokens && placement.cached_tokens !== null
    ? Math.min(1, placement.cached_tokens / placement.prompt_tokens)
    : null;
}

/** The agents in the order of placement, each once in a row. */
export function agentsOf(view: RequestView): string[] {
  return view.placements.map((each) => each.agent).filter((agent, place, all) => agent !== all[place - 1]);
}
