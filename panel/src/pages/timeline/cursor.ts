/** What the keyboard is at: a row, and a request in it. Pure. */

import type { Group } from "./group";
import type { Track } from "./lane";
import type { Row } from "./rows";

export interface Cursor {
  group: Group;
  /** Null: the row of the whole agent. */
  lane: number | null;
  track: Track | null;
  /** Where to look in the next lane. */
  at_ms: number;
}

export type Step = "up" | "down" | "earlier" | "later";

/** The cursor after a step, null if there is no row at all. Without a cursor, the first step goes to the first row. */
export function stepped(cursor: Cursor | null, step: Step, rows: readonly Row<Group>[], at_ms: number): Cursor | null {
  const place = cursor === null ? -1 : placeOf(cursor, rows);
  if (cursor === null || place < 0) {
    return onRow(rows[0], at_ms);
  }
  if (step === "up" || step === "down") {
    const next = rows[place + (step === "up" ? -1 : 1)];
    return next === undefined ? cursor : onRow(next, cursor.at_ms);
  }
  if (cursor.lane === null) {
    return cursor;
  }
  const tracks = cursor.group.lane(cursor.lane)?.tracks ?? [];
  const here = cursor.track === null ? -1 : tracks.indexOf(cursor.track);
  const later = cursor.track === null ? tracks.findIndex((track) => track.start_ms >= cursor.at_ms) : here + 1;
  const next = step === "later" ? tracks[later < 0 ? tracks.length : later] : tracks[cursor.track === null ? (later < 0 ? tracks.length : later) - 1 : here - 1];
  return next === undefined ? cursor : { ...cursor, track: next, at_ms: middleOf(next, cursor.at_ms) };
}

/** The row, and the request in it that is nearest to that time. */
export function onRow(row: Row<Group> | undefined, at_ms: number): Cursor | null {
  if (row === undefined) {
    return null;
  }
  const lane = row.lane === null ? null : row.source.lane(row.lane);
  const track = lane?.at(at_ms, Number.POSITIVE_INFINITY) ?? null;
  return { group: row.source, lane: row.lane, track, at_ms };
}

/** -1 once its row is gone. */
export function placeOf(cursor: Pick<Cursor, "group" | "lane">, rows: readonly Row<Group>[]): number {
  return rows.findIndex((row) => row.source === cursor.group && row.lane === cursor.lane);
}

function middleOf(track: Track, at_ms: number): number {
  const end = track.end_ms ?? Math.max(at_ms, track.start_ms);
  return (track.start_ms + end) / 2;
}
