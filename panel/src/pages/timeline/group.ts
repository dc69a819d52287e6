/** The lanes of one agent, or of the queue. */

import type { Agent } from "../../types";
import { type StateSpan, withEvent } from "./agent_states";
import { Density } from "./density";
import { Lane } from "./lane";

/** An agent that offers more slots than this shows these. */
const MAX_LANES = 512;

export class Group {
  readonly id: string;
  readonly label: string;
  readonly density = new Density();
  readonly #lanes: Lane[] = [];
  /** The connection whose requests are added; a later one of the same name takes the place of one that is gone. */
  agentKey: number;
  /** The newest state of the agent, null once it is gone. */
  agent: Agent | null = null;
  states: readonly StateSpan[] = [];
  /** What the agent offers, or offered. */
  slots = 0;
  /** Since when there is such an agent, as far as is known; null: since ever. */
  since_ms: number | null = null;
  /** Slots, or waiting requests, at the moment. */
  busy = 0;

  constructor(id: string, label: string, agentKey: number) {
    this.id = id;
    this.label = label;
    this.agentKey = agentKey;
  }

  get lanes(): number {
    return Math.max(this.slots, this.#lanes.length);
  }

  /** Null for a lane where nothing happened yet. */
  lane(number: number): Lane | null {
    return this.#lanes[number] ?? null;
  }

  /** The lane to add to. */
  laneFor(number: number): Lane {
    const place = Math.min(Math.max(0, number), MAX_LANES - 1);
    while (this.#lanes.length <= place) {
      this.#lanes.push(new Lane());
    }
    return this.#lanes[place] as Lane;
  }

  numberOf(lane: Lane): number {
    return this.#lanes.indexOf(lane);
  }

  /** The first lane that is free from `ms` on. */
  freeLane(ms: number): Lane {
    for (let number = 0; number < MAX_LANES; number += 1) {
      const last = this.laneFor(number).tracks.at(-1);
      if (last === undefined || (last.end_ms !== null && last.end_ms <= ms)) {
        return this.laneFor(number);
      }
    }
    return this.laneFor(MAX_LANES - 1);
  }

  /** Forget lanes at the end where nothing is left. */
  trim(): void {
    while (this.#lanes.length > this.slots && this.#lanes.at(-1)?.tracks.length === 0) {
      this.#lanes.pop();
    }
  }

  /** All that is known of its lanes, those without a track too. */
  *known(): Iterable<Lane> {
    yield* this.#lanes;
  }

  happened(event: Parameters<typeof withEvent>[1]): void {
    if (event.event === "joined" && this.states.length === 0 && this.since_ms === null) {
      this.since_ms = event.at_ms;
    }
    this.states = withEvent(this.states, event);
  }

  /** Drop states that ended before. */
  forgetStates(ms: number): void {
    if (this.states.some((span) => span.end_ms !== null && span.end_ms < ms)) {
      this.states = this.states.filter((span) => span.end_ms === null || span.end_ms >= ms);
    }
  }
}
