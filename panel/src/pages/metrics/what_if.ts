/** What is asked about capacity, and the answer in sentences. Pure. */

import { formatDuration, formatPercent, plural } from "../../core/format";
import type { CapacityAnswer } from "../../types";

/** The fields of the form, as they are typed. */
export interface WhatIf {
  readonly ttft_s: string;
  readonly at: string;
  readonly agents: string;
  readonly slots: string;
  readonly deployment: string;
}

export const FIRST: WhatIf = { ttft_s: "2", at: "1", agents: "0", slots: "", deployment: "default" };

/** The body of the question; the balancer says what is wrong with a field. */
export function bodyOf(asked: WhatIf): Record<string, unknown> {
  const number = (text: string) => (text.trim() === "" ? null : Number(text));
  return {
    p95_ttft_s: number(asked.ttft_s),
    at: number(asked.at),
    agents: number(asked.agents),
    slots: number(asked.slots),
    deployment: asked.deployment,
  };
}

const time = (seconds: number | null): string => (seconds === null ? "none" : formatDuration(1000 * seconds));

/** The verdict first. */
export function sentencesOf({ replayed, ...found }: CapacityAnswer): string[] {
  const { breaks } = replayed;
  const ways = [
    found.slots_that_do === null ? "" : `${plural(found.slots_that_do, "slot")} of each agent`,
    found.agents_that_do === null ? "" : `${plural(found.agents_that_do, "more agent", "more agents")}`,
    found.at_that_holds === null || replayed.holds ? "" : `${round(found.at_that_holds)} of the load`,
  ].filter(Boolean);
  const most = Math.max(...found.sites.map((each) => each.slots), found.slots_that_do ?? 0);
  return [
    `TTFT p95 ${time(replayed.ttft_p95_s)}, p50 ${time(replayed.ttft_p50_s)}, queue p95 ${time(replayed.queue_p95_s)}; slots ${formatPercent(replayed.busy)} busy.`,
    `${plural(replayed.requests, "request")} replayed, ${replayed.requests - replayed.answered} of them refused.`,
    breaks === null
      ? ""
      : `Breaks first: ${breaks.kind}, after ${formatDuration(1000 * breaks.at_s)} (late or refused: ${Object.entries(breaks.counts)
          .map(([kind, count]) => `${kind} ${count}`)
          .join(", ")}).`,
    replayed.holds
      ? `Holds up to ${round(found.at_that_holds ?? 1)} times the load.`
      : `Would hold: ${ways.join(", or ") || "nothing that was tried"}.`,
    most > found.measured_together + 0.5
      ? `Measured with at most ${found.measured_together.toFixed(1)} answers together; more are estimated.`
      : "",
    found.is_whole ? "" : "There was no time to try everything.",
  ].filter(Boolean);
}

function round(value: number): string {
  return String(Number(value.toPrecision(3)));
}
