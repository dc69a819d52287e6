/** What the picture shows, out of what the feed says. Pure. */

import { clientOf, compareNames, plural } from "../../../core/format";
import type { Agent, Deployment, RequestView } from "../../../types";
import { machinesIn, stateOf } from "../agent_facts";
import { type LaneBook, type Lanes, laneCount } from "../lanes";

export interface ClientShown {
  name: string;
  count: number;
  /** Deployments that its requests in flight are for. */
  uses: ReadonlySet<string>;
}

interface InFlight {
  count: number;
  uses: Set<string>;
}

export interface QueueShown {
  deployment: string;
  waiting: number;
  oldest_wait_ms: number | null;
  /** Keys in the order of the queue, as many as the feed has. */
  keys: readonly number[];
}

export interface AgentShown {
  agent: Agent;
  lanes: Lanes;
  count: number;
  state: ReturnType<typeof stateOf>;
}

export interface Picture {
  clients: readonly ClientShown[];
  queues: readonly QueueShown[];
  agents: readonly AgentShown[];
  busy: number;
  slots: number;
  waiting: number;
}

/** Clients that have a place of their own; the others share one. */
const MAX_CLIENTS = 7;
export const OTHERS = "others";

const NOTHING: InFlight = { count: 0, uses: new Set() };

/** Which clients have a place: they keep it until another one needs it and they have nothing in flight. */
export class ClientBook {
  #names: string[] = [];

  place(counts: ReadonlyMap<string, InFlight>): ClientShown[] {
    const strangers = [...counts.keys()].filter((name) => !this.#names.includes(name)).sort();
    for (const name of strangers) {
      const idle = this.#names.findIndex((each) => !counts.has(each));
      if (this.#names.length < MAX_CLIENTS) {
        this.#names.push(name);
      } else if (idle >= 0) {
        this.#names[idle] = name;
      }
    }
    const shown = this.#names.map((name) => ({ name, ...(counts.get(name) ?? NOTHING) }));
    const rest: InFlight = { count: 0, uses: new Set() };
    for (const [name, { count, uses }] of counts) {
      if (!this.#names.includes(name)) {
        rest.count += count;
        for (const deployment of uses) {
          rest.uses.add(deployment);
        }
      }
    }
    return rest.count > 0 ? [...shown, { name: OTHERS, ...rest }] : shown;
  }
}

export function pictureOf(
  agents: ReadonlyMap<string, Agent>,
  deployments: ReadonlyMap<string, Deployment>,
  requests: ReadonlyMap<string, RequestView>,
  now_ms: number,
  laneBook: LaneBook,
  clientBook: ClientBook,
): Picture {
  const counts = new Map<string, InFlight>();
  const waiting = new Map<string, RequestView[]>();
  for (const request of requests.values()) {
    if (request.phase === "ended") {
      continue;
    }
    const name = clientOf(request);
    const inFlight = counts.get(name) ?? { count: 0, uses: new Set<string>() };
    inFlight.count += 1;
    inFlight.uses.add(request.deployment);
    counts.set(name, inFlight);
    if (request.phase === "buffered") {
      const known = waiting.get(request.deployment);
      if (known) {
        known.push(request);
      } else {
        waiting.set(request.deployment, [request]);
      }
    }
  }
  const names = [...new Set([...deployments.keys(), ...[...agents.values()].map((agent) => agent.deployment)])].sort(
    (a, b) => Number(b === "default") - Number(a === "default") || compareNames(a, b),
  );
  const queues = names.map((deployment) => {
    const stays = waiting.get(deployment) ?? [];
    stays.sort((a, b) => (a.position ?? Infinity) - (b.position ?? Infinity));
    const known = deployments.get(deployment);
    return {
      deployment,
      waiting: known?.waiting ?? stays.length,
      oldest_wait_ms: known?.oldest_wait_ms ?? null,
      keys: stays.map((request) => request.key),
    };
  });
  laneBook.keep(agents);
  const shown = [...agents.values()]
    .sort((a, b) => compareNames(a.label, b.label) || a.key - b.key)
    .map((agent) => ({
      agent,
      lanes: laneBook.of(agent, requests),
      count: laneCount(agent),
      state: stateOf(agent, now_ms),
    }));
  return {
    clients: clientBook.place(counts),
    queues,
    agents: shown,
    busy: shown.reduce((sum, each) => sum + each.agent.lanes.length, 0),
    slots: shown.reduce((sum, each) => sum + (each.agent.is_accepting ? each.agent.usable_slots : 0), 0),
    waiting: queues.reduce((sum, queue) => sum + queue.waiting, 0),
  };
}

/** The picture in a sentence. */
export function sentenceOf(picture: Picture): string {
  const clients = picture.clients.filter((client) => client.count > 0).length;
  const troubled = picture.agents.filter((each) => each.state.tone === "bad").length;
  return (
    `${clients} ${clients === 1 ? "client" : "clients"}, ${picture.waiting} waiting, ` +
    `${plural(machinesIn(picture.agents.map((each) => each.agent)), "agent")}, ` +
    `${picture.busy} of ${picture.slots} slots busy` +
    (troubled ? `, ${troubled} ${troubled === 1 ? "agent" : "agents"} in trouble` : "")
  );
}
