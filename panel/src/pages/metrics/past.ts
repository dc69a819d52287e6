/** Ranges of the past: what an address asks for, how it is moved, and the columns of what comes. Pure. */

import type { MetricsField, MetricsKind, MetricsRange } from "../../types";
import type { Series } from "./series";

export const RANGES = [
  { value: "", label: "Last hour, live" },
  { value: "1h", label: "Last hour" },
  { value: "6h", label: "6 hours" },
  { value: "24h", label: "24 hours" },
  { value: "7d", label: "7 days" },
  { value: "30d", label: "30 days" },
  { value: "365d", label: "A year" },
] as const;

export const KINDS = [
  { value: "fleet", label: "Whole fleet" },
  { value: "deployment", label: "By deployment" },
  { value: "agent", label: "By agent" },
  { value: "client", label: "By client" },
  { value: "key", label: "By key" },
] as const satisfies readonly { value: MetricsKind; label: string }[];

/** The least that is shown, in seconds. */
export const LEAST_S = 60;
const MOST_S = 400 * 86_400;

/** What the page shows; without `last` and `from` it is the live hour. Seconds of Unix. */
export interface Asked {
  readonly by: MetricsKind;
  readonly last: string;
  readonly from: number | null;
  readonly to: number | null;
}

/** What an address asks for; what makes no sense in it is left out. */
export function askedIn(query: URLSearchParams): Asked {
  const by = KINDS.find((kind) => kind.value === query.get("by"))?.value ?? "fleet";
  const from = number(query.get("from"));
  const to = number(query.get("to"));
  if (from !== null && to !== null && to - from >= LEAST_S) {
    return { by, last: "", from, to };
  }
  const last = RANGES.find((range) => range.value === query.get("range"))?.value ?? "";
  return { by, last: last === "" && by !== "fleet" ? "1h" : last, from: null, to: null };
}

/** The query of an address, and of the balancer's route. */
export function queryOf(asked: Asked): Record<string, string | number | null> {
  return {
    by: asked.by === "fleet" ? null : asked.by,
    range: asked.last === "" ? null : asked.last,
    from: asked.from,
    to: asked.to,
  };
}

export function isLive(asked: Asked): boolean {
  return asked.last === "" && asked.from === null && asked.by === "fleet";
}

/** A range that lies elsewhere: moved by a part of its length, or so many times as long around its middle. */
export function moved(
  range: { begin: number; end: number },
  by: { steps?: number; times?: number },
  now_s: number,
): { from: number; to: number } {
  const length = range.end - range.begin;
  const wanted = Math.min(MOST_S, Math.max(LEAST_S, Math.round(length * (by.times ?? 1))));
  const middle = (range.begin + range.end) / 2 + length * (by.steps ?? 0);
  const to = Math.min(Math.round(middle + wanted / 2), Math.max(Math.floor(now_s), wanted));
  return { from: Math.max(0, to - wanted), to };
}

/**
 * One series on the grid of the range, its moments in milliseconds of Unix.
 *
 * Where the fleet has no row the balancer did not run; where a key has none it was not used, and its counts are 0.
 */
export function seriesIn(range: MetricsRange, rows: readonly (readonly (number | null)[])[]): Series {
  const length = Math.max(0, Math.round((range.end - range.begin) / range.step_s));
  const at = range.fields.indexOf("start_s");
  const columns = {} as Record<MetricsField, (number | null)[]>;
  range.fields.forEach((field, place) => {
    if (field === "start_s") {
      return;
    }
    const empty = range.by !== "fleet" && COUNTS.has(field) ? 0 : null;
    const column = new Array<number | null>(length).fill(empty);
    for (const row of rows) {
      const index = Math.round(((row[at] ?? 0) - range.begin) / range.step_s);
      if (index >= 0 && index < length) {
        column[index] = row[place] ?? null;
      }
    }
    columns[field] = column;
  });
  const start_ms = Array.from({ length }, (_, index) => (range.begin + index * range.step_s) * 1000);
  return { start_ms, bucket_ms: range.step_s * 1000, columns };
}

// ------------------------------------------------------------------------------------- inside

const COUNTS: ReadonlySet<string> = new Set([
  "requests",
  "failed",
  "prompt_tokens",
  "cached_tokens",
  "generated_tokens",
  "busy_max",
  "waiting_max",
]);

function number(text: string | null): number | null {
  return text !== null && /^\d{1,11}$/.test(text) ? Number(text) : null;
}
