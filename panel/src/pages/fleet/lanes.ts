/** Which request is in which slot of an agent. Pure. */

import type { Agent, LanePhase, RequestView } from "../../types";

export interface InLane {
  request: number;
  phase: LanePhase;
  since_ms: number;
}

export type Lanes = readonly (InLane | null)[];

/**
 * Gives requests their lanes: that of their placement, else the one they had, else the lowest that is free, so that a
 * request stays where it is while others come and go.
 */
export class LaneBook {
  readonly #pages = new Map<number, { agent: Agent; lanes: Lanes }>();

  /** The lanes of an agent, as many as it has slots, more if it has more requests. */
  of(agent: Agent, requests: ReadonlyMap<string, RequestView>): Lanes {
    const known = this.#pages.get(agent.key);
    if (known?.agent === agent) {
      return known.lanes;
    }
    const lanes: (InLane | null)[] = new Array(laneCount(agent)).fill(null);
    const homeless: InLane[] = [];
    const before = new Map(known?.lanes.map((each, lane) => [each?.request, lane]));
    for (const [request, phase, since_ms] of agent.lanes) {
      const wanted = placedAt(requests.get(String(request)), agent.key) ?? before.get(request) ?? -1;
      const entry = { request, phase, since_ms };
      if (wanted >= 0 && wanted < lanes.length && lanes[wanted] === null) {
        lanes[wanted] = entry;
      } else {
        homeless.push(entry);
      }
    }
    let free = 0;
    for (const entry of homeless) {
      while (free < lanes.length && lanes[free] !== null) {
        free += 1;
      }
      lanes[free] = entry;
    }
    this.#pages.set(agent.key, { agent, lanes });
    return lanes;
  }

  /** Forget agents that are gone. */
  keep(agents: ReadonlyMap<string, Agent>): void {
    for (const key of this.#pages.keys()) {
      if (!agents.has(String(key))) {
        this.#pages.delete(key);
      }
    }
  }
}

/** Slots that the agent has, or will have when its model is loaded. */
export function laneCount(agent: Agent): number {
  return Math.max(agent.slots_total || agent.desired_slots_total, agent.lanes.length);
}

function placedAt(request: RequestView | undefined, agent_key: number): number | undefined {
  const last = request?.placements.at(-1);
  return last?.agent_key === agent_key && last.ended_ms === null ? last.lane : undefined;
}
