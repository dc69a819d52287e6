/** What happened in one slot, or in one line of the queue: tracks in the order of their beginnings. Pure. */

import type { RequestView } from "../../types";
import type { Stage, StageKind } from "./stages";

export interface Track {
  /** Of a view's track; empty if only a list of slots names it. */
  id: string;
  /** The agent's connection, 0 in the queue. */
  agentKey: number;
  request: number;
  /** Null while only the agent's list of its slots names the request. */
  view: RequestView | null;
  /** The place among the placements, -1 in the queue. */
  placement: number;
  start_ms: number;
  /** Null while it goes on. */
  end_ms: number | null;
  stages: readonly Stage[];
  lane: Lane;
}

export class Lane {
  readonly tracks: Track[] = [];

  add(track: Track): void {
    const tracks = this.tracks;
    let place = tracks.length;
    while (place > 0 && (tracks[place - 1] as Track).start_ms > track.start_ms) {
      place -= 1;
    }
    tracks.splice(place, 0, track);
  }

  remove(track: Track): void {
    const place = this.tracks.indexOf(track);
    if (place >= 0) {
      this.tracks.splice(place, 1);
    }
  }

  /** Drop and return what ended before. */
  dropBefore(ms: number): Track[] {
    let count = 0;
    while (count < this.tracks.length && endOf(this.tracks[count] as Track) < ms) {
      count += 1;
    }
    return this.tracks.splice(0, count);
  }

  /** The place of the first track that ends after `ms`; tracks of a lane do not overlap. */
  firstAfter(ms: number): number {
    let low = 0;
    let high = this.tracks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (endOf(this.tracks[middle] as Track) <= ms) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /** The track at `ms`, or the nearest one at most `tolerance_ms` away. */
  at(ms: number, tolerance_ms: number): Track | null {
    const place = this.firstAfter(ms);
    let best: Track | null = null;
    let least = tolerance_ms;
    for (const track of [this.tracks[place - 1], this.tracks[place]]) {
      if (track !== undefined) {
        const distance = Math.max(0, track.start_ms - ms, ms - endOf(track));
        if (distance <= least) {
          best = track;
          least = distance;
        }
      }
    }
    return best;
  }
}

function endOf(track: Track): number {
  return track.end_ms ?? Number.POSITIVE_INFINITY;
}

export interface Block {
  kind: StageKind;
  /** Whole device pixels. */
  left: number;
  right: number;
  /** Null where several requests share pixels. */
  track: Track | null;
}

/**
 * What to draw of a lane between two times, `scale` device pixels per millisecond.
 *
 * No pixel is in two blocks, however many requests are in it: it belongs to whoever comes first. A request that would have
 * none gets one if that is free, and neighbours of one kind that are narrower than an edge become one block.
 */
export function blocksOf(lane: Lane, from_ms: number, to_ms: number, now_ms: number, scale: number): Block[] {
  const blocks: Block[] = [];
  const pixel = (ms: number): number => Math.round((Math.min(Math.max(ms, from_ms), to_ms) - from_ms) * scale);
  let free = 0;
  const put = (kind: StageKind, left: number, right: number, track: Track): void => {
    const last = blocks.at(-1);
    if (last !== undefined && last.kind === kind && last.right === left && right - left < NARROW && last.track !== track) {
      last.right = right;
      last.track = null;
    } else {
      blocks.push({ kind, left, right, track });
    }
    free = right;
  };
  for (let place = lane.firstAfter(from_ms); place < lane.tracks.length; place += 1) {
    const track = lane.tracks[place] as Track;
    if (track.start_ms >= to_ms) {
      break;
    }
    let isThere = false;
    for (const { kind, start_ms, end_ms } of track.stages) {
      const left = Math.max(free, pixel(start_ms));
      const right = pixel(end_ms ?? now_ms);
      if (right > left) {
        put(kind, left, right, track);
        isThere = true;
      }
    }
    if (!isThere && track.stages.length > 0 && pixel(track.end_ms ?? now_ms) >= free) {
      const left = Math.max(free, pixel(track.start_ms));
      put(longest(track, now_ms), left, left + 1, track);
    }
  }
  return blocks;
}

/** Pixels. */
const NARROW = 3;

function longest(track: Track, now_ms: number): StageKind {
  const length = (stage: Stage): number => (stage.end_ms ?? now_ms) - stage.start_ms;
  return track.stages.reduce((best, stage) => (length(stage) > length(best) ? stage : best)).kind;
}
