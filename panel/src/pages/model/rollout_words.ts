/** Rollouts in words: what a phase means, and what an operator may do in it. */

import { plural } from "../../core/format";
import type { Rollout, RolloutAgent, RolloutPhase } from "../../types";
import type { Segment, Tone } from "../../ui";

export type Order = "pause" | "resume" | "abort" | "undo";

interface Words {
  word: string;
  tone: Tone;
}

const PHASES: Record<RolloutPhase, Words> = {
  prefetching: { word: "fetching files", tone: "info" },
  canary: { word: "canary", tone: "info" },
  rolling: { word: "rolling out", tone: "info" },
  paused: { word: "paused", tone: "warn" },
  rolling_back: { word: "rolling back", tone: "warn" },
  complete: { word: "complete", tone: "ok" },
  rolled_back: { word: "rolled back", tone: "bad" },
  aborted: { word: "aborted", tone: "bad" },
};

const AGENT_PHASES: Readonly<Record<string, Words>> = {
  waiting: { word: "waits for its turn", tone: "quiet" },
  prefetching: { word: "fetches the files", tone: "info" },
  prefetched: { word: "has the files", tone: "quiet" },
  draining: { word: "finishes its answers", tone: "info" },
  loading: { word: "loads", tone: "info" },
  probing: { word: "tries the model", tone: "info" },
  serving: { word: "serves", tone: "ok" },
  failed: { word: "failed", tone: "bad" },
  rolled_back: { word: "is back", tone: "warn" },
  leaving: { word: "leaves", tone: "quiet" },
};

const ORDERS: Record<RolloutPhase, readonly Order[]> = {
  prefetching: ["pause", "abort"],
  canary: ["pause", "abort"],
  rolling: ["pause", "abort"],
  paused: ["resume", "abort"],
  rolling_back: [],
  complete: ["undo"],
  rolled_back: [],
  aborted: [],
};

export function phaseWords(phase: string): Words {
  return PHASES[phase as RolloutPhase] ?? { word: phase, tone: "quiet" };
}

export function agentPhaseWords(phase: string): Words {
  return AGENT_PHASES[phase] ?? { word: phase, tone: "quiet" };
}

/** What may be ordered now. A first state has nothing to go back to, so it is neither paused nor aborted. */
export function ordersFor(rollout: Rollout): readonly Order[] {
  const orders = ORDERS[rollout.phase] ?? [];
  return rollout.from === null ? orders.filter((order) => order === "resume") : orders;
}

/** Whether something is under way. */
export function isMoving(rollout: Rollout): boolean {
  return ["prefetching", "canary", "rolling", "rolling_back"].includes(rollout.phase);
}

/** What to say before an order is carried out; null if it can be taken back at once. */
export function questionOf(order: Order, rollout: Rollout): string | null {
  switch (order) {
    case "abort":
      return `All agents of ${rollout.deployment} go back to ${revisionWords(rollout.from)}. Running answers are finished first.`;
    case "undo":
      return `${rollout.deployment} is desired again as in ${revisionWords(rollout.from)}, as a new revision, and rolled out to all its agents.`;
    default:
      return null;
  }
}

export function revisionWords(revision: number | null): string {
  return revision === null ? "the state before" : `revision ${revision}`;
}

/** Agents by how far they are: a bar of the fleet. */
export function progressSegments(rollout: Rollout): Segment[] {
  const isBack = ["rolling_back", "rolled_back", "aborted"].includes(rollout.phase);
  const count = (test: (agent: RolloutAgent) => boolean): number => rollout.agents.filter(test).length;
  const done = count((agent) => agent.phase === (isBack ? "rolled_back" : "serving"));
  const failed = count((agent) => agent.phase === "failed");
  const idle = count((agent) => ["waiting", "prefetched"].includes(agent.phase));
  const busy = rollout.agents.length - done - failed - idle;
  const isBusy = (agent: RolloutAgent): boolean => !["waiting", "prefetched", "failed", "serving", "rolled_back"].includes(agent.phase);
  const far = rollout.agents.filter(isBusy).reduce((sum, agent) => sum + Math.min(1, Math.max(0, agent.progress ?? 0)), 0);
  const segments: Segment[] = [
    { value: done, label: isBack ? "back" : "serving", color: "--ok", text: String(done) },
    { value: busy > 0 ? Math.max(far, 0.02) : 0, label: "under way", color: "--accent", text: String(busy) },
    { value: failed, label: "failed", color: "--bad", text: String(failed) },
    { value: idle, label: "waiting", color: "--c-idle", text: String(idle) },
  ];
  return segments.filter((each) => each.value > 0);
}

/** Which revisions it is about: `revision 3 → 4`. */
export function changeWords({ phase, from, to }: Rollout): string {
  if (to === null) {
    return "";
  }
  const isBack = ["rolling_back", "rolled_back", "aborted"].includes(phase);
  if (isBack) {
    return `revision ${to} was tried`;
  }
  return from === null || from === to ? `revision ${to}` : `revision ${from} → ${to}`;
}

/** One sentence of how far it is. */
export function headline(rollout: Rollout): string {
  const { agents, phase } = rollout;
  if (agents.length === 0) {
    return "No agent has it yet.";
  }
  const serving = agents.filter((agent) => agent.phase === "serving").length;
  if (phase === "rolled_back" || phase === "aborted" || phase === "rolling_back") {
    const back = agents.filter((agent) => agent.phase === "rolled_back").length;
    return `${back} of ${plural(agents.length, "agent")} back at ${revisionWords(rollout.from)}.`;
  }
  return `${serving} of ${plural(agents.length, "agent")} ${agents.length === 1 ? "serves" : "serve"} it.`;
}

const FIRST = ["failed", "probing", "loading", "draining", "prefetching", "rolled_back", "prefetched", "waiting", "serving"];

/** Agents in the order of what an operator wants to see most. */
export function sortedAgents(agents: readonly RolloutAgent[]): RolloutAgent[] {
  const rank = (agent: RolloutAgent): number => (FIRST.indexOf(agent.phase) + FIRST.length) % FIRST.length;
  return [...agents].sort(
    (one, other) => rank(one) - rank(other) || one.agent.localeCompare(other.agent, "en", { numeric: true }),
  );
}
