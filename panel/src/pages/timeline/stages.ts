/**
 * What a request did from its arrival to its ending, as stages one after the other.
 *
 * The balancer reports moments of its own clock (`at_ms`, `first_ms`, …), and, with the first results, durations that the
 * agent measured (`wait_ms`, `prefill_ms`). Stages are laid out backwards from the first result, so the two never overlap.
 */

import type { Placement, RequestView } from "../../types";

export type StageKind = "queued" | "prepare" | "engine" | "cached" | "prefill" | "decode" | "stop";

export interface Stage {
  kind: StageKind;
  start_ms: number;
  /** Null while it goes on. */
  end_ms: number | null;
}

/** What the views do not say themselves. */
export interface Known {
  /** The agent reports when it has prepared a request; Paddler's agents do not. */
  reportsPreparation: boolean;
  /** Since when the balancer waits for the agent to stop, null if it does not. */
  stopping_ms: number | null;
}

/** The stages in the queue, oldest first. */
export function queueStages(view: RequestView): Stage[] {
  return view.queue.map((stay) => ({
    kind: "queued",
    start_ms: stay.since_ms,
    end_ms: stay.until_ms ?? view.ended_ms,
  }));
}

/** The stages on one agent: none is empty, none overlaps, and they follow each other without a gap. */
export function placementStages(placement: Placement, known: Known): Stage[] {
  const { at_ms: at, first_ms: first, prepared_ms: prepared } = placement;
  const end = placement.ended_ms;
  const marks: [StageKind, number][] = [];
  if (first === null) {
    if (prepared !== null) {
      marks.push(["prepare", at], ["prefill", prepared]);
    } else {
      marks.push([known.reportsPreparation ? "prepare" : "prefill", at]);
    }
  } else {
    const prefill = before(first, placement.prefill_ms, prepared ?? at, at);
    const engine = before(prefill, placement.wait_ms, prepared ?? prefill, at);
    const cached = prefill + Math.round((first - prefill) * cachedRatio(placement));
    marks.push(["prepare", at], ["engine", engine], ["cached", prefill], ["prefill", cached], ["decode", first]);
  }
  if (known.stopping_ms !== null) {
    marks.push(["stop", Math.max(known.stopping_ms, first ?? at)]);
  }
  return between(marks, end);
}

/** 0..1: how much of the prompt was in the cache. */
export function cachedRatio(placement: Placement): number {
  const { cached_tokens: cached, prompt_tokens: prompt } = placement;
  return cached !== null && prompt !== null && prompt > 0 ? Math.min(1, Math.max(0, cached / prompt)) : 0;
}

/** `moment` less a duration, or `otherwise` if that is unknown; never before `least`. */
function before(moment: number, duration: number | null, otherwise: number, least: number): number {
  return Math.min(moment, Math.max(least, duration === null ? otherwise : moment - duration));
}

/** Each mark lasts until the next one; those of no length are left out, except one that goes on. */
function between(marks: readonly [StageKind, number][], end: number | null): Stage[] {
  const stages: Stage[] = [];
  marks.forEach(([kind, start], place) => {
    const next = marks[place + 1];
    const start_ms = end === null ? start : Math.min(start, end);
    const end_ms = next === undefined ? end : end === null ? next[1] : Math.min(next[1], end);
    if (end_ms === null || end_ms > start_ms) {
      stages.push({ kind, start_ms, end_ms });
    }
  });
  return stages;
}
