/** What the events of the feed add up to. Pure. */

import type { FeedEvent, Topic } from "../types";

export type TopicValues = ReadonlyMap<string, unknown>;

export interface FeedState {
  epoch: string;
  seq: number;
  /** Values of topics that were received whole at least once; a value is replaced, never changed. */
  topics: Readonly<Partial<Record<Topic, TopicValues>>>;
}

export const NOTHING: FeedState = { epoch: "", seq: 0, topics: {} };

/**
 * The state after an event of a stream with these topics.
 *
 * A full event replaces those topics, and drops all others: nothing keeps them up to date any more. Diffs of an epoch
 * that is not the state's, and those that are in it already, change nothing: `stale` is true for a foreign epoch, which
 * only a full event can begin.
 */
export function applied(
  state: FeedState,
  event: FeedEvent,
  topics: readonly Topic[],
): { state: FeedState; stale: boolean } {
  if (event.full) {
    const values: Partial<Record<Topic, TopicValues>> = {};
    for (const topic of topics) {
      values[topic] = replaced(state.topics[topic], event.set[topic] ?? {}, state.epoch === event.epoch);
    }
    return { state: { epoch: event.epoch, seq: event.seq, topics: values }, stale: false };
  }
  if (event.epoch !== state.epoch) {
    return { state, stale: true };
  }
  if (event.seq <= state.seq) {
    return { state, stale: false };
  }
  const values = { ...state.topics };
  for (const topic of topics) {
    const set = event.set[topic];
    const gone = event.gone[topic];
    if (set === undefined && gone === undefined) {
      continue;
    }
    const next = new Map(values[topic]);
    for (const key of gone ?? []) {
      next.delete(key);
    }
    for (const key in set) {
      next.set(key, set[key]);
    }
    values[topic] = next;
  }
  return { state: { epoch: event.epoch, seq: event.seq, topics: values }, stale: false };
}

/** The id of the last event, null if a topic of these was never received whole. */
export function lastEventId(state: FeedState, topics: readonly Topic[]): string | null {
  const isComplete = state.epoch !== "" && topics.every((topic) => state.topics[topic] !== undefined);
  return isComplete ? `${state.epoch}.${state.seq}` : null;
}

/** The values as a map, in the order that keys had before, so that nothing jumps on the page. */
function replaced(
  before: TopicValues | undefined,
  values: Readonly<Record<string, unknown>>,
  keepsOrder: boolean,
): TopicValues {
  const next = new Map<string, unknown>();
  if (before !== undefined && keepsOrder) {
    for (const key of before.keys()) {
      if (key in values) {
        next.set(key, values[key]);
      }
    }
  }
  for (const key in values) {
    next.set(key, values[key]);
  }
  return next;
}
