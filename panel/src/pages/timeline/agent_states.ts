/** What an agent was besides serving: changing its model, failed, gone. Pure. */

import type { AgentEvent } from "../../types";

export type AgentState = "serving" | "swap" | "failed" | "gone";

export interface StateSpan {
  state: Exclude<AgentState, "serving">;
  start_ms: number;
  /** Null while it lasts. */
  end_ms: number | null;
  /** `loading`, or what the agent said about it. */
  text: string;
}

/** How a phase of an agent is drawn: phases without a model that could answer are a swap. */
export function stateOf(phase: string | null): AgentState {
  switch (phase) {
    case "resolving":
    case "downloading":
    case "draining":
    case "loading":
    case "probing":
    case "leaving":
    case "restarting":
    case "unloading":
    case "unloaded":
      return "swap";
    case "failed":
      return "failed";
    default:
      return "serving";
  }
}

/** Add an event to the spans, oldest first. Events that are not later than the last one known are ignored. */
export function withEvent(
  spans: readonly StateSpan[],
  event: Pick<AgentEvent, "at_ms" | "event" | "phase" | "detail">,
): readonly StateSpan[] {
  const last = spans.at(-1);
  if (last !== undefined && event.at_ms < (last.end_ms ?? last.start_ms)) {
    return spans;
  }
  const state = event.event === "left" ? "gone" : stateOf(event.phase);
  const text = event.event === "left" ? (event.detail ?? "left") : (event.phase ?? "");
  if (last !== undefined && last.end_ms === null) {
    if (last.state === state && (last.text === text || state === "gone")) {
      return spans;
    }
    const before = spans.slice(0, -1);
    const closed = event.at_ms > last.start_ms ? [...before, { ...last, end_ms: event.at_ms }] : before;
    return state === "serving" ? closed : [...closed, { state, start_ms: event.at_ms, end_ms: null, text }];
  }
  return state === "serving" ? spans : [...spans, { state, start_ms: event.at_ms, end_ms: null, text }];
}
