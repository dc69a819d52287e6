/** Which time is in sight. Pure: every function returns a new viewport. */

export interface Viewport {
  /** The time at the right edge; while it follows, a little after now. */
  end_ms: number;
  /** From edge to edge. */
  span_ms: number;
  follows: boolean;
}

export const MIN_SPAN_MS = 2_000;
export const MAX_SPAN_MS = 600_000;
/** How long the chart remembers. */
export const KEEP_MS = 600_000;
/** The part of the width at the right of now. */
const AHEAD = 0.02;

/** The viewport at a moment: one that follows moves with it, another stays within what is kept. */
export function settled(view: Viewport, now_ms: number): Viewport {
  const newest = now_ms + view.span_ms * AHEAD;
  if (view.follows) {
    return view.end_ms === newest ? view : { ...view, end_ms: newest };
  }
  const oldest = Math.min(newest, now_ms - KEEP_MS + view.span_ms);
  const end_ms = Math.min(newest, Math.max(oldest, view.end_ms));
  return end_ms === view.end_ms ? view : { ...view, end_ms };
}

/** `factor` above 1 shows more time; the time at `fraction` of the width stays where it is, or now if it follows. */
export function zoomed(view: Viewport, factor: number, fraction: number, now_ms: number): Viewport {
  const span_ms = clamp(view.span_ms * factor, MIN_SPAN_MS, MAX_SPAN_MS);
  const fixed = view.end_ms - view.span_ms * (1 - fraction);
  return settled({ ...view, span_ms, end_ms: fixed + span_ms * (1 - fraction) }, now_ms);
}

/** Later by `ms`, earlier if it is negative. Going back stops to follow; coming to the newest begins to follow. */
export function panned(view: Viewport, ms: number, now_ms: number): Viewport {
  const end_ms = view.end_ms + ms;
  const newest = now_ms + view.span_ms * AHEAD;
  return settled({ ...view, end_ms, follows: ms > 0 && end_ms >= newest - view.span_ms * 0.002 }, now_ms);
}

export function paused(view: Viewport): Viewport {
  return { ...view, follows: false };
}

export function following(view: Viewport, now_ms: number): Viewport {
  return settled({ ...view, follows: true }, now_ms);
}

/** So that `start_ms`..`end_ms` is in sight, moved as little as possible; unchanged if it is. */
export function revealing(view: Viewport, start_ms: number, end_ms: number, now_ms: number): Viewport {
  const left = view.end_ms - view.span_ms;
  const edge = view.span_ms * 0.05;
  if (end_ms > left + edge && start_ms < view.end_ms) {
    return view;
  }
  const target = start_ms >= view.end_ms ? Math.min(end_ms, start_ms + view.span_ms / 2) + edge : start_ms - edge + view.span_ms;
  return settled({ ...view, end_ms: target, follows: false }, now_ms);
}

const STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000];

/** The step of the marks on the axis: the smallest with at least `room` pixels from mark to mark. */
export function axisStep(span_ms: number, width: number, room: number): number {
  const least = (span_ms / Math.max(1, width)) * room;
  return STEPS_MS.find((step) => step >= least) ?? 300_000;
}

function clamp(value: number, least: number, most: number): number {
  return Math.min(most, Math.max(least, value));
}
