/** What is said of a track, a row and a moment: in the tooltip, and for screen readers. Pure but for the clock's zone. */

import { clientOf, formatDuration, formatInteger, formatTime, plural } from "../../core/format";
import { wallTime } from "../../core/time";
import type { Cursor } from "./cursor";
import type { Group } from "./group";
import { LOOKS } from "./kinds";
import type { Track } from "./lane";
import { cachedRatio, type Stage } from "./stages";

/** The stage at a time, or the last one before it. */
export function stageAt(track: Track, ms: number): Stage | undefined {
  return track.stages.findLast((stage) => stage.start_ms <= ms) ?? track.stages[0];
}

export function nameOf(track: Track): string {
  return track.view?.id || `Request ${track.request}`;
}

/** `slot 2 of a1`, `the queue`. */
export function placeName(group: Group, lane: number | null): string {
  return group.id === "" ? "the queue" : lane === null ? group.label : `slot ${lane} of ${group.label}`;
}

/** Names and values about a request in its slot, in the order of what happened. */
export function factsOf(track: Track, now_ms: number): [string, string][] {
  const { view } = track;
  const facts: [string, string][] = [];
  const placement = view?.placements[track.placement];
  if (view !== null) {
    facts.push(["Client", clientOf(view)], ["Deployment", view.deployment]);
  }
  const lengths = new Map<string, number>();
  for (const stage of track.stages) {
    const name = stage.kind === "cached" ? LOOKS.prefill.label : LOOKS[stage.kind].label;
    lengths.set(name, (lengths.get(name) ?? 0) + (stage.end_ms ?? now_ms) - stage.start_ms);
  }
  for (const [name, length] of lengths) {
    facts.push([name, formatDuration(Math.max(0, length))]);
  }
  if (placement?.prompt_tokens != null) {
    const cached = cachedRatio(placement);
    facts.push(["Prompt", `${formatInteger(placement.prompt_tokens)} tokens, ${Math.round(cached * 100)} % cached`]);
  }
  if (view !== null && view.tokens > 0) {
    facts.push(["Answer", plural(view.tokens, "token")]);
  }
  if (placement?.ending) {
    facts.push(["Ended", placement.ending]);
  }
  return facts;
}

/** A sentence about what the keyboard is at. */
export function announced(cursor: Cursor, now_ms: number): string {
  const { group, track } = cursor;
  const place = placeName(group, cursor.lane);
  if (cursor.lane === null) {
    return group.id === ""
      ? `The queue: ${plural(group.busy, "request")} waiting.`
      : `${group.label}: ${group.agent === null ? "gone" : `${group.busy} of ${group.slots} slots busy`}.`;
  }
  if (track === null) {
    return `${place}: nothing happened.`;
  }
  const stage = track.stages.at(-1);
  const length = formatDuration((track.end_ms ?? now_ms) - track.start_ms);
  const what = track.end_ms === null && stage ? `${LOOKS[stage.kind].words}, for ${length}` : `${length}, ended`;
  const client = track.view?.client ? `, client ${track.view.client}` : "";
  return `${nameOf(track)}${client}, ${place}, since ${formatTime(wallTime(track.start_ms))}: ${what}.`;
}
