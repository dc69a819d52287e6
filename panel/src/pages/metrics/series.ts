/** The metrics history as columns of charts and rows of a table. Pure. */

import { formatDate, formatTime } from "../../core/format";
import type { MetricsField, MetricsHistory, MetricsRow } from "../../types";

/** One value every `bucket_ms`; null where nothing was measured. */
export type Column = readonly (number | null)[];

export interface Series {
  /** The beginning of each bucket, on the balancer's clock. */
  readonly start_ms: readonly number[];
  readonly bucket_ms: number;
  readonly columns: Readonly<Record<MetricsField, Column>>;
}

/** Rows that the page keeps: the last hour. */
export const MAX_ROWS = 360;

/** The newest `MAX_ROWS` rows as columns; a bucket that is missing between two others is null. */
export function seriesOf(history: MetricsHistory): Series {
  const { bucket_ms, fields } = history;
  const at = fields.indexOf("start_ms");
  const rows = filled(
    history.rows.filter((row) => typeof row[at] === "number"),
    at,
    bucket_ms,
  ).slice(-MAX_ROWS);
  const columns = {} as Record<MetricsField, Column>;
  fields.forEach((field, index) => {
    columns[field] = rows.map((row) => row[index] ?? null);
  });
  return { start_ms: rows.map((row) => row[at] ?? 0), bucket_ms, columns };
}

/**
 * The history after the feed's newest row, which replaces the last one or follows it. A row of the same bucket with
 * fewer requests was on its way while a newer history was loaded, and is left out.
 */
export function withNewest(history: MetricsHistory, row: MetricsRow): MetricsHistory {
  const at = history.fields.indexOf("start_ms");
  const start = row[at];
  const known = history.rows.at(-1)?.[at];
  if (typeof start !== "number" || row.length !== history.fields.length) {
    return history;
  }
  if (typeof known !== "number" || start > known) {
    return { ...history, rows: [...history.rows, row].slice(-MAX_ROWS) };
  }
  const ended = history.fields.indexOf("requests");
  const isOlder = start < known || (row[ended] ?? 0) < (history.rows.at(-1)?.[ended] ?? 0);
  return isOlder ? history : { ...history, rows: [...history.rows.slice(0, -1), row] };
}

/**
 * Tokens of each bucket as a rate.
 *
 * The newest bucket is not over yet: it counts for the time that it had, and before half of it has passed for nothing,
 * since what a few tokens of its first moments give is no rate.
 */
export function ratesOf(series: Series, field: MetricsField, now_ms: number): Column {
  const last = series.start_ms.length - 1;
  return series.columns[field].map((value, index) => {
    if (value === null) {
      return null;
    }
    const passed_ms = index === last ? now_ms - (series.start_ms[index] ?? 0) : series.bucket_ms;
    const took_ms = Math.min(series.bucket_ms, passed_ms);
    return took_ms < series.bucket_ms / 2 ? null : (value / took_ms) * 1000;
  });
}

/** Cached tokens of all prompt tokens, 0..1; null for a bucket without prompts. */
export function hitRates(series: Series): Column {
  return series.columns.prompt_tokens.map((prompt, index) => {
    const cached = series.columns.cached_tokens[index];
    return prompt === null || prompt === 0 || typeof cached !== "number" ? null : cached / prompt;
  });
}

/** The newest value that was measured, and when. */
export function newest(series: Series, column: Column): { value: number; start_ms: number } | null {
  for (let index = column.length - 1; index >= 0; index -= 1) {
    const value = column[index];
    if (typeof value === "number") {
      return { value, start_ms: series.start_ms[index] ?? 0 };
    }
  }
  return null;
}

export function sum(column: Column): number {
  return column.reduce<number>((all, value) => all + (value ?? 0), 0);
}

export function largest(column: Column): number | null {
  return column.reduce<number | null>(
    (most, value) => (value === null ? most : Math.max(most ?? value, value)),
    null,
  );
}

/** Where values stand alone, that no line reaches: they are drawn as points. */
export function lonely(values: ArrayLike<number | null | undefined>): number[] {
  const has = (index: number): boolean => typeof values[index] === "number";
  const found: number[] = [];
  for (let index = 0; index < values.length; index += 1) {
    if (has(index) && !has(index - 1) && !has(index + 1)) {
      found.push(index);
    }
  }
  return found;
}

/** The largest value of the newest buckets. */
export function worstOf(column: Column, buckets: number): number | null {
  return largest(column.slice(-buckets));
}

/** Whether anything was measured at all. */
export function hasValues(column: Column): boolean {
  return column.some((value) => value !== null);
}

// ------------------------------------------------------------------------------------- inside

function filled(rows: readonly MetricsRow[], at: number, bucket_ms: number): MetricsRow[] {
  const all: MetricsRow[] = [];
  for (const row of rows) {
    const before = all.at(-1)?.[at];
    if (typeof before === "number") {
      const missing = Math.round(((row[at] ?? before) - before) / bucket_ms) - 1;
      for (let number = 1; number <= Math.min(missing, MAX_ROWS); number += 1) {
        const empty: MetricsRow = row.map(() => null);
        empty[at] = before + number * bucket_ms;
        all.push(empty);
      }
    }
    all.push(row);
  }
  return all;
}

/**
 * A mark of the axis of time, in the viewer's zone; marks less than a minute apart differ by their seconds, and a day
 * begins with its date.
 */
export function markOf(time_s: number, step_s: number): string {
  const time = new Date(time_s * 1000);
  const text = formatTime(time);
  if (step_s >= 86_400 || (step_s >= 3600 && text === "00:00:00")) {
    return formatDate(time).slice(5, 10);
  }
  return step_s < 60 ? text : text.slice(0, 5);
}
