/** Requests and agents for the tests. */

import type { Agent, Placement, RequestView } from "../../types";

export function aPlacement(more: Partial<Placement> = {}): Placement {
  return {
    agent: "a1",
    agent_key: 1,
    lane: 0,
    at_ms: 1_000,
    why: "the only agent that had a free slot: 0 of 4 slots busy",
    prepared_ms: null,
    first_ms: null,
    prompt_tokens: null,
    cached_tokens: null,
    wait_ms: null,
    prefill_ms: null,
    template_ms: null,
    ended_ms: null,
    ending: null,
    preemptions: 0,
    ...more,
  };
}

export function aRequest(more: Partial<RequestView> = {}): RequestView {
  return {
    key: 7,
    id: "chatcmpl-7",
    client: "app",
    deployment: "default",
    kind: "generation",
    route: "/v1/chat/completions",
    phase: "leased",
    state: { state: "prefill", word: "prefill", severity: "info" },
    arrived_ms: 900,
    position: null,
    queue: [{ since_ms: 900, until_ms: 1_000, positions: [[900, 0]] }],
    placements: [aPlacement()],
    first_result_ms: null,
    tokens: 0,
    progress: [],
    continuations: 0,
    ended_ms: null,
    ending: null,
    capture: null,
    ...more,
  };
}

/** One that ended, with all that is known of it. */
export function anEndedRequest(more: Partial<RequestView> = {}): RequestView {
  return aRequest({
    phase: "ended",
    placements: [
      aPlacement({
        prepared_ms: 1_010,
        first_ms: 1_200,
        prompt_tokens: 100,
        cached_tokens: 25,
        wait_ms: 20,
        prefill_ms: 160,
        template_ms: 4,
        ended_ms: 2_200,
        ending: "done",
      }),
    ],
    first_result_ms: 1_200,
    tokens: 51,
    progress: [
      [1_200, 1],
      [1_700, 31],
      [2_200, 51],
    ],
    ended_ms: 2_200,
    ending: { kind: "done", code: null, text: null, finish: "stop" },
    state: { state: "done", word: "done", severity: "ok" },
    ...more,
  });
}

export function anAgent(more: Partial<Agent> = {}): Agent {
  const agent: Pick<Agent, "key" | "label" | "protocol" | "phase" | "detail" | "slots_total" | "joined_ms" | "lanes"> = {
    key: 1,
    label: "a1",
    protocol: "paddler-trio.1",
    phase: "serving",
    detail: null,
    slots_total: 4,
    joined_ms: 500,
    lanes: [],
    ...more,
  };
  return agent as Agent;
}
