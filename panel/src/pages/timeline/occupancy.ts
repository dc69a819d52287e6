/** How many slots are busy with what, now; what was busy goes into the densities as time passes. */

import type { LanePhase } from "../../types";
import type { DensityKind } from "./density";
import type { Group } from "./group";

export type Counts = Record<DensityKind, number>;

const KIND_OF: Record<LanePhase, DensityKind> = { q: "wait", p: "prefill", d: "decode", s: "stop" };

/** What an agent's list of busy slots adds up to. */
export function countsOf(phases: Iterable<LanePhase>): Counts {
  const counts: Counts = { wait: 0, prefill: 0, decode: 0, stop: 0 };
  for (const phase of phases) {
    counts[KIND_OF[phase]] += 1;
  }
  return counts;
}

export class Occupancy {
  readonly #busy = new Map<Group, Counts>();
  #counted_ms: number | null = null;

  /** Time before this is accounted for already. */
  begin(now_ms: number): void {
    this.#counted_ms = now_ms;
  }

  set(group: Group, counts: Counts): void {
    this.#busy.set(group, counts);
  }

  forget(group: Group): void {
    this.#busy.delete(group);
  }

  /** Add what was busy since the last time; to be called before anything of it changes. */
  pass(now_ms: number): void {
    const since_ms = this.#counted_ms;
    this.#counted_ms = now_ms;
    if (since_ms === null || now_ms <= since_ms) {
      return;
    }
    for (const [group, counts] of this.#busy) {
      for (const kind in counts) {
        group.density.add(kind as DensityKind, since_ms, now_ms, counts[kind as DensityKind]);
      }
    }
  }
}
