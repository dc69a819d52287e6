/**
 * The balancer's clock.
 *
 * Times in panel data are milliseconds of a monotonic clock that begins anywhere. Every event has the same moment on
 * that clock and as wall time, so times are shown right even if the viewer's clock is wrong.
 */

import { signal } from "@preact/signals";

/** How far the estimate may lie from an event before it is believed at once: another start of the balancer, or sleep. */
const JUMP_MS = 1000;

let skew_ms: number | null = null;
let wall_ms = 0;

const clock_ms = (): number => performance.now();

/** Learn the balancer's clock from an event or a document that has just arrived. */
export function synchronize(moment: { now_ms: number; time: string }): void {
  const measured = moment.now_ms - clock_ms();
  // An event that was under way for long makes the clock look late, never early: the largest difference is the best.
  if (skew_ms === null || measured > skew_ms || skew_ms - measured > JUMP_MS) {
    skew_ms = measured;
  } else {
    skew_ms += (measured - skew_ms) * 0.02;
  }
  const wall = Date.parse(moment.time);
  if (!Number.isNaN(wall)) {
    wall_ms = wall - moment.now_ms;
  }
}

/** Milliseconds of the balancer's clock; 0 until it was heard of. */
export function now(): number {
  return skew_ms === null ? 0 : clock_ms() + skew_ms;
}

/** The wall time of a moment of the balancer's clock. */
export function wallTime(ms: number): Date {
  return new Date(wall_ms + ms);
}

/** Grows once a second; what shows ages reads it. */
export const second = signal(0);

if (typeof document !== "undefined") {
  setInterval(() => {
    if (!document.hidden) {
      second.value += 1;
    }
  }, 1000);
}
