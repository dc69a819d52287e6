/** What a change costs the agents, in words. */

import type { Tone } from "../../ui";
import type { DeploymentChange } from "./spec";

const COST: Record<DeploymentChange["change"], { word: string; tone: Tone; means: string }> = {
  none: { word: "no work", tone: "ok", means: "Agents are sent nothing." },
  in_place: { word: "in place", tone: "ok", means: "Engines go on; nothing is loaded." },
  context: { word: "new context", tone: "warn", means: "Engines start anew over the same weights, agent by agent." },
  weights: { word: "new weights", tone: "warn", means: "Agents load other weights, one after the other." },
  added: { word: "added", tone: "info", means: "Agents that meet its conditions load it." },
  removed: { word: "removed", tone: "bad", means: "Agents unload it after running answers; requests for it are refused." },
};

export function costWords(change: DeploymentChange["change"]): { word: string; tone: Tone; means: string } {
  return COST[change] ?? { word: change, tone: "info", means: "" };
}
