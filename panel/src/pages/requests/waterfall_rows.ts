/** A request as rows of a waterfall: what happened, one below the other, in the order of time. Pure. */

import { clientOf, formatDuration, formatInteger, formatRate, plural } from "../../core/format";
import type { Placement, RequestView } from "../../types";
import { placementStages, type StageKind } from "../timeline/stages";
import { type Point, positionSteps, type Speed, speedLine, speedsOf } from "./speed";

export interface WaterfallRow {
  id: string;
  label: string;
  /** 1: a part of what happened on an agent. */
  depth: 0 | 1;
  /** A moment has no length. */
  kind: StageKind | "moment" | "placed" | "lost";
  start_ms: number;
  /** Null while it goes on; as the start for a moment. */
  end_ms: number | null;
  /** How long, or when after the arrival. */
  value: string;
  note: string;
  /** 0..1, of prefill. */
  cached: number;
  /** Speed or position. */
  curve: Point[];
}

export function waterfallRows(view: RequestView, now_ms: number): WaterfallRow[] {
  const since = (ms: number): string => `+${formatDuration(Math.max(0, ms - view.arrived_ms))}`;
  const moment = (
    id: string,
    label: string,
    ms: number,
    note: string,
    kind: "moment" | "placed" | "lost" = "moment",
    depth: 0 | 1 = 0,
  ): WaterfallRow => ({ id, label, depth, kind, start_ms: ms, end_ms: ms, value: since(ms), note, cached: 0, curve: [] });

  const rows: WaterfallRow[] = [moment("arrival", "Arrival", view.arrived_ms, arrivalNote(view))];
  const speeds = speedsOf(view.progress ?? []);
  const events = [
    ...view.queue.map((stay, place) => ({ at_ms: stay.since_ms, rank: 0, stay, place })),
    ...view.placements.map((placement, place) => ({ at_ms: placement.at_ms, rank: 1, placement, place })),
  ].sort((a, b) => a.at_ms - b.at_ms || a.rank - b.rank);
  for (const event of events) {
    if ("stay" in event) {
      const { stay } = event;
      const end_ms = stay.until_ms ?? view.ended_ms;
      const positions = stay.positions.map(([, position]) => position);
      rows.push({
        id: `queue ${event.place}`,
        label: event.place === 0 ? "Queue" : "Queue again",
        depth: 0,
        kind: "queued",
        start_ms: stay.since_ms,
        end_ms,
        value: formatDuration((end_ms ?? now_ms) - stay.since_ms),
        note: positionNote(positions, end_ms === null ? view.position : null),
        cached: 0,
        curve: positionSteps(stay.positions, stay.since_ms, end_ms ?? now_ms),
      });
      continue;
    }
    const { placement, place } = event;
    const label = place === 0 ? `Placed on ${placement.agent}` : `Continued on ${placement.agent}`;
    rows.push(moment(`placed ${place}`, label, placement.at_ms, `Slot ${placement.lane}. ${sentence(placement.why)}`, "placed"));
    rows.push(...partsOf(view, placement, place, speeds, now_ms, since));
    const { ending } = placement;
    if (ending !== null && placement.ended_ms !== null && !["done", "stopped", "refused"].includes(ending)) {
      rows.push(moment(`left ${place}`, endingLabel(ending), placement.ended_ms, sentence(ending.replace(/^(lost|failed): /, "")), "lost", 1));
    }
  }
  if (view.ended_ms !== null) {
    rows.push(moment("ending", "Ending", view.ended_ms, endingNote(view), ["failed", "refused"].includes(view.ending?.kind ?? "") ? "lost" : "moment"));
  }
  return rows;
}

/** The stages on one agent: prefill with its cached part is one row. */
function partsOf(
  view: RequestView,
  placement: Placement,
  place: number,
  speeds: readonly Speed[],
  now_ms: number,
  since: (ms: number) => string,
): WaterfallRow[] {
  const rows: WaterfallRow[] = [];
  const stages = placementStages(placement, { reportsPreparation: placement.prepared_ms !== null, stopping_ms: null });
  for (const stage of stages) {
    const last = rows.at(-1);
    if (stage.kind === "prefill" && last?.kind === "cached" && last.end_ms !== null) {
      const whole = (stage.end_ms ?? now_ms) - last.start_ms;
      last.kind = "prefill";
      last.cached = whole > 0 ? (last.end_ms - last.start_ms) / whole : 0;
      last.end_ms = stage.end_ms;
      last.value = formatDuration(whole);
      continue;
    }
    const isOnlyCached = stage.kind === "cached";
    rows.push({
      id: `${stage.kind} ${place}`,
      label: LABELS[stage.kind],
      depth: 1,
      kind: stage.kind,
      start_ms: stage.start_ms,
      end_ms: stage.end_ms,
      value: formatDuration((stage.end_ms ?? now_ms) - stage.start_ms),
      note: stageNote(stage.kind, view, placement, stage.start_ms, stage.end_ms ?? now_ms, speeds),
      cached: isOnlyCached ? 1 : 0,
      curve: stage.kind === "decode" ? speedLine(speeds, stage.start_ms, stage.end_ms ?? now_ms) : [],
    });
  }
  if (placement.first_ms !== null) {
    const at = rows.findIndex((row) => row.kind === "decode");
    rows.splice(at < 0 ? rows.length : at, 0, {
      id: `first ${place}`,
      label: place === 0 ? "First token" : "First new token",
      depth: 1,
      kind: "moment",
      start_ms: placement.first_ms,
      end_ms: placement.first_ms,
      value: since(placement.first_ms),
      note: place === 0 ? "Time to first token, from the arrival." : "The client saw a pause, no break.",
      cached: 0,
      curve: [],
    });
  }
  return rows;
}

const LABELS: Record<StageKind, string> = {
  queued: "Queue",
  prepare: "Template, tools, grammar",
  engine: "Engine's queue",
  cached: "Prefill",
  prefill: "Prefill",
  decode: "Decode",
  stop: "Stopping",
};

function stageNote(
  kind: StageKind,
  view: RequestView,
  placement: Placement,
  start_ms: number,
  end_ms: number,
  speeds: readonly Speed[],
): string {
  switch (kind) {
    case "prepare":
      return placement.template_ms === null ? "" : `Until its tokens were there it took ${formatDuration(placement.template_ms)}.`;
    case "cached":
    case "prefill": {
      const { prompt_tokens: prompt, cached_tokens: cached, prefill_ms: ms } = placement;
      if (prompt === null) {
        return "";
      }
      const computed = prompt - (cached ?? 0);
      const speed = ms !== null && ms > 0 && computed > 0 ? `, ${formatRate((computed * 1000) / ms, "tok")}` : "";
      return `${plural(prompt, "token")}: ${formatInteger(cached ?? 0)} cached, ${formatInteger(computed)} computed${speed}.`;
    }
    case "decode": {
      const inside = speeds.filter((each) => each.to_ms > start_ms && each.from_ms < end_ms);
      const tokens = view.placements.length === 1 ? view.tokens : Math.round(inside.reduce((sum, each) => sum + (each.per_s * (each.to_ms - each.from_ms)) / 1000, 0));
      if (tokens < 1) {
        return "";
      }
      const speed = end_ms > start_ms && tokens > 1 ? `, ${formatRate(((tokens - 1) * 1000) / (end_ms - start_ms), "tok")}` : "";
      const moments = (placement.preempted_ms ?? []).map((each) => formatDuration(each - view.arrived_ms));
      const when = moments.length > 0 ? `, after ${moments.join(", ")}` : "";
      const preempted = placement.preemptions > 0 ? ` Preempted ${plural(placement.preemptions, "time")}${when}.` : "";
      return `${plural(tokens, "token")}${speed}.${preempted}`;
    }
    default:
      return "";
  }
}

function arrivalNote(view: RequestView): string {
  const client = view.client === "" ? `a client without a key (${clientOf(view)})` : `client ${view.client}`;
  return `From ${client}, to deployment ${view.deployment}${view.route === null ? "" : `, by ${view.route}`}.`;
}

/** Positions are how many were before it. */
function positionNote(positions: readonly number[], now: number | null): string {
  const first = positions[0];
  const last = now ?? positions.at(-1);
  if (first === undefined || last === undefined) {
    return "";
  }
  const then = `${plural(first, "request")} before it`;
  return first === last ? `${then}.` : `${then}, then ${formatInteger(last)}.`;
}

function endingLabel(ending: string): string {
  if (ending.startsWith("handed back")) {
    return "Handed back";
  }
  return ending.startsWith("lost") ? "Agent lost" : "Failed";
}

function endingNote(view: RequestView): string {
  const { ending } = view;
  if (ending === null) {
    return "";
  }
  return sentence(`${view.state.word}${ending.text ? `: ${ending.text}` : ""}`);
}

/** With a capital at its beginning and a full stop at its end. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  return trimmed === "" ? "" : `${trimmed[0]?.toUpperCase()}${trimmed.slice(1)}${/[.!?…]$/.test(trimmed) ? "" : "."}`;
}
