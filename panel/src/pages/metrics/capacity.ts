/** How much of what the slots can do is asked of them, in a sentence. Pure. */

import { type Series, largest, sum } from "./series";

/** Of the newest minutes, from which the sentence is made. */
export const WINDOW_BUCKETS = 30;

export interface Capacity {
  readonly tone: "ok" | "warn" | "bad" | "quiet";
  readonly sentence: string;
  readonly detail: string;
}

/**
 * The arrival rate against the service rate.
 *
 * How busy the slots were is the mean, over the buckets of the window, of the most that were busy at a time among those
 * that there were. At that load they ended what ended; at full load they would end as much more.
 */
export function capacityOf(series: Series): Capacity {
  const from = Math.max(0, series.start_ms.length - WINDOW_BUCKETS);
  const recent = (field: "requests" | "busy_max" | "slots" | "waiting_max") =>
    series.columns[field].slice(from);
  const allSlots = recent("slots");
  const loads = recent("busy_max").flatMap((busy, index) => {
    const those = allSlots[index] ?? 0;
    return busy === null || those === 0 ? [] : [Math.min(1, busy / those)];
  });
  const requests = sum(recent("requests"));
  const slots = allSlots.at(-1) ?? null;
  const waiting = largest(recent("waiting_max")) ?? 0;
  const seconds = (loads.length * series.bucket_ms) / 1000;
  if (slots === null || slots === 0) {
    return {
      tone: "quiet",
      sentence: "There are no slots.",
      detail: "Add an agent, or wait until one serves the model.",
    };
  }
  const load = loads.length === 0 ? 0 : sum(loads) / loads.length;
  if (requests === 0 || load === 0) {
    return {
      tone: "quiet",
      sentence: load === 0 ? `All ${slots} slots are free.` : `The slots are ${percent(load)} busy.`,
      detail: "No request ended in the last five minutes, so nothing says how many they could serve.",
    };
  }
  const arrival = requests / seconds;
  const service = arrival / load;
  const detail =
    `${perMinute(arrival)} requests a minute arrive; the ${slots} slots could serve about ` +
    `${perMinute(service)} like those of the last five minutes.`;
  if (waiting > 0 && load >= 0.9) {
    const more = Math.max(1, Math.ceil((load * slots) / 0.7) - slots);
    return {
      tone: "bad",
      sentence: `Requests wait: the slots are ${percent(load)} busy, and up to ${waiting} waited at a time.`,
      detail: `${detail} ${more} more ${more === 1 ? "slot" : "slots"} would bring it to 70 %.`,
    };
  }
  if (load >= 0.7) {
    return { tone: "warn", sentence: `The slots are ${percent(load)} busy: little is left for a peak.`, detail };
  }
  return { tone: "ok", sentence: `The slots are ${percent(load)} busy.`, detail };
}

function perMinute(rate_s: number): string {
  const value = rate_s * 60;
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}

function percent(ratio: number): string {
  return `${Math.round(ratio * 100)} %`;
}
