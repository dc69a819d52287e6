/** What the balancer's feed says, as signals. Values are replaced whole, so an equal reference is an equal value. */

import { type ReadonlySignal, batch, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type {
  Agent,
  Balancer,
  Deployment,
  FeedEvent,
  GoneAgent,
  LogsLast,
  MetricsRow,
  ProblemEntry,
  RequestView,
  Rollout,
  Topic,
} from "../types";
import { type Connection, Feed } from "./feed";
import { type FeedState, NOTHING, applied, lastEventId } from "./feed_state";
import { synchronize } from "./time";

const balancer = signal<Balancer | null>(null);
const agents = signal<ReadonlyMap<string, Agent>>(new Map());
const deployments = signal<ReadonlyMap<string, Deployment>>(new Map());
const requests = signal<ReadonlyMap<string, RequestView>>(new Map());
const rollouts = signal<ReadonlyMap<string, Rollout>>(new Map());
const metrics = signal<MetricsRow | null>(null);
const logs = signal<LogsLast | null>(null);
const problems = signal<ReadonlyMap<string, ProblemEntry>>(new Map());
const gone = signal<ReadonlyMap<string, GoneAgent>>(new Map());
const known = signal<ReadonlySet<Topic>>(new Set());

let state: FeedState = NOTHING;

export const feed = new Feed({
  lastEventId: (topics) => lastEventId(state, topics),
  receive(event: FeedEvent, topics: readonly Topic[]): boolean {
    const before = state;
    const next = applied(before, event, topics);
    if (next.stale) {
      return false;
    }
    state = next.state;
    synchronize(event);
    try {
      show(before, state);
    } catch (error) {
      reportError(error); // a fault of what shows the event; the stream is as good as before
    }
    return true;
  },
});

export interface Store {
  balancer: ReadonlySignal<Balancer | null>;
  agents: ReadonlySignal<ReadonlyMap<string, Agent>>;
  deployments: ReadonlySignal<ReadonlyMap<string, Deployment>>;
  requests: ReadonlySignal<ReadonlyMap<string, RequestView>>;
  rollouts: ReadonlySignal<ReadonlyMap<string, Rollout>>;
  metrics: ReadonlySignal<MetricsRow | null>;
  logs: ReadonlySignal<LogsLast | null>;
  problems: ReadonlySignal<ReadonlyMap<string, ProblemEntry>>;
  /** Agents that were here. */
  gone: ReadonlySignal<ReadonlyMap<string, GoneAgent>>;
  /** Topics whose values are complete: an empty map of another one may only be not here yet. */
  known: ReadonlySignal<ReadonlySet<Topic>>;
  connection: ReadonlySignal<Connection>;
}

export const store: Store = {
  balancer,
  agents,
  deployments,
  requests,
  rollouts,
  metrics,
  logs,
  problems,
  gone,
  known,
  connection: feed.connection,
};

/** Keep these topics up to date while the component is mounted. */
export function useTopics(...topics: Topic[]): void {
  useEffect(() => feed.want(topics), [topics.join()]);
}

/** Forget everything, for the next one who signs in. */
export function forget(): void {
  const before = state;
  state = NOTHING;
  show(before, state);
}

function show(before: FeedState, after: FeedState): void {
  const values = <T>(topic: Topic): ReadonlyMap<string, T> =>
    (after.topics[topic] ?? EMPTY) as ReadonlyMap<string, T>;
  const changed = (topic: Topic): boolean => before.topics[topic] !== after.topics[topic];
  batch(() => {
    if (changed("balancer")) {
      balancer.value = values<Balancer>("balancer").get("status") ?? null;
    }
    if (changed("agents")) {
      agents.value = values<Agent>("agents");
    }
    if (changed("deployments")) {
      deployments.value = values<Deployment>("deployments");
    }
    if (changed("requests")) {
      requests.value = values<RequestView>("requests");
    }
    if (changed("rollouts")) {
      rollouts.value = values<Rollout>("rollouts");
    }
    if (changed("metrics")) {
      metrics.value = values<MetricsRow>("metrics").get("current") ?? null;
    }
    if (changed("logs")) {
      logs.value = values<LogsLast>("logs").get("last") ?? null;
    }
    if (changed("problems")) {
      problems.value = values<ProblemEntry>("problems");
    }
    if (changed("gone")) {
      gone.value = values<GoneAgent>("gone");
    }
    const topics = Object.keys(after.topics) as Topic[];
    if (topics.length !== known.peek().size || topics.some((topic) => !known.peek().has(topic))) {
      known.value = new Set(topics);
    }
  });
}

const EMPTY: ReadonlyMap<string, unknown> = new Map();
