/** The tracks of all requests, by request and place: stays in the queue, and placements. */

import type { RequestView } from "../../types";
import type { Lane, Track } from "./lane";
import type { Stage } from "./stages";

export type TrackPlace = readonly [kind: "queue" | "slot", number: number];

function idOf(request: number, [kind, number]: TrackPlace): string {
  return `${request} ${kind} ${number}`;
}

export class Tracks {
  readonly #tracks = new Map<string, Track>();
  /** The agent of the newest placement of each request: what is asked most. */
  readonly #agents = new Map<number, number>();

  get size(): number {
    return this.#tracks.size;
  }

  get(request: number, place: TrackPlace): Track | undefined {
    return this.#tracks.get(idOf(request, place));
  }

  /** Put a view's track into a lane; `stages` is not empty. */
  add(view: RequestView, place: TrackPlace, lane: Lane, agentKey: number, stages: readonly Stage[]): Track {
    const track: Track = {
      id: idOf(view.key, place),
      agentKey,
      request: view.key,
      view,
      placement: place[0] === "slot" ? place[1] : -1,
      start_ms: (stages[0] as Stage).start_ms,
      end_ms: endOf(stages),
      stages,
      lane,
    };
    lane.add(track);
    this.#tracks.set(track.id, track);
    if (place[0] === "slot") {
      this.#agents.set(view.key, agentKey);
    }
    return track;
  }

  /** Only here, not in its lane. */
  forget(track: Track): void {
    if (this.#tracks.delete(track.id) && track.agentKey === this.#agents.get(track.request)) {
      this.#agents.delete(track.request);
    }
  }

  /** Those of a request: in slots, then in the queue, where stays of no length are left out. */
  *of(request: number): Iterable<Track> {
    let view: RequestView | null = null;
    for (let number = 0; ; number += 1) {
      const track = this.get(request, ["slot", number]);
      if (track === undefined) {
        break;
      }
      view = track.view;
      yield track;
    }
    for (let number = 0; number < Math.max(1, view?.queue.length ?? 0); number += 1) {
      const track = this.get(request, ["queue", number]);
      if (track !== undefined) {
        yield track;
      }
    }
  }

  /** A view shows the request in a slot of this agent. */
  isOn(request: number, agentKey: number): boolean {
    if (this.#agents.get(request) === agentKey) {
      return true;
    }
    for (const track of this.of(request)) {
      if (track.agentKey === agentKey) {
        return true;
      }
    }
    return false;
  }
}

export function renew(track: Track, view: RequestView, stages: readonly Stage[]): void {
  track.view = view;
  if (stages.length > 0) {
    track.stages = stages;
    track.end_ms = endOf(stages);
  }
}

export function close(track: Track, now_ms: number): void {
  track.stages = closed(track.stages, now_ms);
  track.end_ms = endOf(track.stages) ?? now_ms;
}

/** What went on ended at that time. */
export function closed(stages: readonly Stage[], ms: number): readonly Stage[] {
  return stages.map((stage) => (stage.end_ms === null ? { ...stage, end_ms: Math.max(ms, stage.start_ms) } : stage));
}

function endOf(stages: readonly Stage[]): number | null {
  return (stages.at(-1) as Stage).end_ms;
}
