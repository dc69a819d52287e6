/**
 * What happened in the slots of the fleet and in its queue, as far as the chart reaches back.
 *
 * Three sources add up: views of requests (their placements say which slot), the agents' lists of busy slots (all there
 * is when so many requests run that the feed leaves them out), and the agents' comings and goings. A view replaces what
 * was drawn from the lists for the same request.
 */

import type { Agent, AgentEvent, LanePhase, RequestView } from "../../types";
import type { DensityKind } from "./density";
import { Group } from "./group";
import type { Track } from "./lane";
import { countsOf, Occupancy } from "./occupancy";
import { placementStages, queueStages, type Stage, type StageKind } from "./stages";
import { close, closed, renew, Tracks } from "./tracks";
import { KEEP_MS } from "./viewport";

/** What the page keeps of requests; beyond it the oldest go first. */
export const MAX_TRACKS = 60_000;

/** Who had to wait no longer got a slot at once: that is no stay in the queue to look at. */
const AT_ONCE_MS = 5;

const byName = new Intl.Collator("en", { numeric: true });
const STAGE_OF: Record<LanePhase, StageKind> = { q: "engine", p: "prefill", d: "decode", s: "stop" };
const DENSITY_OF_STAGE: Record<StageKind, DensityKind> = {
  queued: "wait",
  prepare: "wait",
  engine: "wait",
  cached: "prefill",
  prefill: "prefill",
  decode: "decode",
  stop: "stop",
};

export class TimelineHistory {
  readonly queue = new Group("", "Queue", 0);
  /** Grows when rows come or go, so that they are laid out anew. */
  structure = 0;
  /** What is older was dropped, because there was too much of it; null if nothing was. */
  forgotten_ms: number | null = null;

  readonly #groups = new Map<string, Group>();
  readonly #groupOf = new Map<number, Group>();
  readonly #tracks = new Tracks();
  /** Drawn from lists of slots, by agent and request. */
  readonly #sketches = new Map<number, Map<number, Track>>();
  readonly #stopping = new Map<number, number>();
  #agents: ReadonlyMap<string, Agent> = new Map();
  readonly #occupancy = new Occupancy();
  #sorted: readonly Group[] | null = null;
  /** How many lanes were laid out. */
  readonly #shown = new Map<Group, number>();

  constructor() {
    this.queue.slots = 1; // an empty queue has a row, too
  }

  /** The queue, then the agents by name. */
  get groups(): readonly Group[] {
    this.#sorted ??= [
      this.queue,
      ...[...this.#groups.values()].sort((a, b) => byName.compare(a.label, b.label) || a.agentKey - b.agentKey),
    ];
    return this.#sorted;
  }

  /** Tracks of requests, in the queue and in slots. */
  get size(): number {
    return this.#tracks.size + [...this.#sketches.values()].reduce((sum, each) => sum + each.size, 0);
  }

  /** Requests as they were when the page was opened: they also fill the densities of the past. */
  begin(views: readonly RequestView[], events: readonly AgentEvent[], now_ms: number): void {
    for (const event of [...events].sort((a, b) => a.at_ms - b.at_ms)) {
      const group = this.#groupFor(event.agent_key, event.agent, event.at_ms);
      group.happened(event);
    }
    this.take([...views].sort((a, b) => a.arrived_ms - b.arrived_ms), now_ms);
    for (const group of this.groups) {
      for (const lane of group.known()) {
        for (const track of lane.tracks) {
          for (const stage of track.stages) {
            group.density.add(DENSITY_OF_STAGE[stage.kind], stage.start_ms, Math.min(stage.end_ms ?? now_ms, now_ms));
          }
        }
      }
    }
    this.#occupancy.begin(now_ms);
  }

  /** Add or renew requests. */
  take(views: Iterable<RequestView>, now_ms: number): void {
    for (const view of views) {
      this.#takeQueue(view);
      this.#takePlacements(view, now_ms);
    }
  }

  /** The agents as they are now. */
  takeAgents(agents: ReadonlyMap<string, Agent>, now_ms: number): void {
    this.#occupancy.pass(now_ms);
    for (const [key, agent] of agents) {
      if (this.#agents.get(key) !== agent) {
        this.#takeAgent(agent, now_ms);
      }
    }
    for (const [key, agent] of this.#agents) {
      if (!agents.has(key)) {
        this.#lost(agent, now_ms);
      }
    }
    this.#agents = agents;
  }

  /** How many requests wait in the balancer. */
  takeWaiting(count: number, now_ms: number): void {
    this.#occupancy.pass(now_ms);
    this.queue.busy = count;
    this.#occupancy.set(this.queue, { wait: count, prefill: 0, decode: 0, stop: 0 });
  }

  /** Requests that left the feed: those that an agent still lists follow its list, the others ended. */
  gone(keys: Iterable<number>, now_ms: number): void {
    for (const key of keys) {
      for (const track of this.#tracks.of(key)) {
        if (track.end_ms !== null) {
          continue;
        }
        if (this.#agents.get(String(track.agentKey))?.lanes.some(([request]) => request === key)) {
          this.#sketchesOf(track.agentKey).set(key, track);
        } else {
          close(track, now_ms);
          this.#stopping.delete(key);
        }
      }
    }
  }

  /** Forget what is older than the chart reaches. */
  prune(now_ms: number): void {
    let horizon_ms = now_ms - KEEP_MS;
    this.#dropBefore(horizon_ms);
    while (this.size > MAX_TRACKS && horizon_ms < now_ms) {
      horizon_ms += (now_ms - horizon_ms) / 4 + 250;
      this.#dropBefore(Math.min(horizon_ms, now_ms));
      this.forgotten_ms = horizon_ms;
    }
    for (const group of this.#groups.values()) {
      group.forgetStates(now_ms - KEEP_MS);
      const last = group.states.at(-1);
      if (group.agent === null && last?.state === "gone" && last.start_ms < now_ms - KEEP_MS / 2) {
        this.#remove(group);
      }
    }
  }

  /** The group of an agent's connection, if it is known. */
  groupOf(agentKey: number): Group | undefined {
    return this.#groupOf.get(agentKey);
  }

  #takeQueue(view: RequestView): void {
    queueStages(view).forEach((stage, place) => {
      const known = this.#tracks.get(view.key, ["queue", place]);
      const passed = stage.end_ms !== null && stage.end_ms - stage.start_ms < AT_ONCE_MS;
      if (known === undefined && !passed) {
        this.#tracks.add(view, ["queue", place], this.queue.freeLane(stage.start_ms), 0, [stage]);
        this.#laneMayBeNew(this.queue);
      } else if (known !== undefined && passed) {
        known.lane.remove(known);
        this.#tracks.forget(known);
      } else if (known !== undefined) {
        renew(known, view, [stage]);
      }
    });
  }

  #takePlacements(view: RequestView, now_ms: number): void {
    if (view.phase === "stopping" && !this.#stopping.has(view.key)) {
      this.#stopping.set(view.key, now_ms);
    }
    view.placements.forEach((placement, place) => {
      const isLast = place === view.placements.length - 1;
      const group = this.#groupFor(placement.agent_key, placement.agent, placement.at_ms);
      const stages = placementStages(placement, {
        reportsPreparation: group.agent === null || group.agent.protocol === "paddler-trio.1",
        stopping_ms: isLast ? (this.#stopping.get(view.key) ?? null) : null,
      });
      const known = this.#tracks.get(view.key, ["slot", place]);
      this.#forgetSketch(placement.agent_key, view.key, known);
      if (known !== undefined) {
        renew(known, view, stages);
      } else if (stages.length > 0) {
        this.#tracks.add(view, ["slot", place], group.laneFor(placement.lane), placement.agent_key, stages);
        this.#laneMayBeNew(group);
      }
    });
    if (view.phase === "ended") {
      this.#stopping.delete(view.key);
    }
  }

  #takeAgent(agent: Agent, now_ms: number): void {
    const group = this.#groupFor(agent.key, agent.label, agent.joined_ms);
    const before = this.#agents.get(String(agent.key));
    if (group.slots !== agent.slots_total || group.agent === null) {
      group.slots = agent.slots_total;
      this.#restructure();
    }
    group.agent = agent;
    group.busy = agent.lanes.length;
    if (before === undefined) {
      group.happened({ at_ms: Math.min(agent.joined_ms, now_ms), event: "joined", phase: agent.phase, detail: null });
    }
    if (before === undefined || before.phase !== agent.phase) {
      group.happened({ at_ms: now_ms, event: "phase", phase: agent.phase, detail: agent.detail });
    }
    this.#occupancy.set(group, countsOf(agent.lanes.map(([, phase]) => phase)));
    this.#sketch(group, agent, now_ms);
  }

  /** Requests of the agent's list that the feed does not show. */
  #sketch(group: Group, agent: Agent, now_ms: number): void {
    const sketches = this.#sketchesOf(agent.key);
    const listed = new Set<number>();
    for (const [key, phase, since_ms] of agent.lanes) {
      listed.add(key);
      if (phase === "s" && !this.#stopping.has(key)) {
        this.#stopping.set(key, since_ms);
      }
      const stage: Stage = { kind: STAGE_OF[phase], start_ms: since_ms, end_ms: null };
      const track = sketches.get(key);
      if (track !== undefined) {
        if (track.end_ms === null && track.stages.at(-1)?.kind !== stage.kind) {
          track.stages = [...closed(track.stages, since_ms), stage];
        }
      } else if (!this.#tracks.isOn(key, agent.key)) {
        const lane = group.freeLane(since_ms);
        const added: Track = {
          id: "",
          agentKey: agent.key,
          request: key,
          view: null,
          placement: -1,
          start_ms: since_ms,
          end_ms: null,
          stages: [stage],
          lane,
        };
        sketches.set(key, added);
        lane.add(added);
        this.#laneMayBeNew(group);
      }
    }
    for (const [key, track] of sketches) {
      if (track.end_ms === null && !listed.has(key)) {
        close(track, now_ms);
        this.#stopping.delete(key);
      }
    }
  }

  #sketchesOf(agentKey: number): Map<number, Track> {
    let found = this.#sketches.get(agentKey);
    if (found === undefined) {
      found = new Map();
      this.#sketches.set(agentKey, found);
    }
    return found;
  }

  #lost(agent: Agent, now_ms: number): void {
    const group = this.#groupOf.get(agent.key);
    if (group === undefined || group.agentKey !== agent.key) {
      return;
    }
    group.agent = null;
    group.busy = 0;
    group.happened({ at_ms: now_ms, event: "left", phase: null, detail: null });
    this.#occupancy.forget(group);
    for (const track of this.#sketches.get(agent.key)?.values() ?? []) {
      if (track.end_ms === null) {
        close(track, now_ms);
      }
    }
    this.#restructure();
  }

  /** The group of a connection; one that takes the place of an agent of the same name that is gone goes on in its lanes. */
  #groupFor(agentKey: number, label: string, at_ms: number): Group {
    const known = this.#groupOf.get(agentKey);
    if (known !== undefined) {
      return known;
    }
    const same = this.#groups.get(label);
    let group: Group;
    if (same === undefined) {
      group = new Group(label, label, agentKey);
    } else if (same.agent === null && (same.agentKey < agentKey || same.states.at(-1)?.state === "gone")) {
      group = same;
      group.agentKey = Math.max(agentKey, same.agentKey);
    } else {
      group = new Group(`${label} ${agentKey}`, label, agentKey);
    }
    this.#groups.set(group.id, group);
    this.#groupOf.set(agentKey, group);
    if (group.states.at(-1)?.state === "gone") {
      group.happened({ at_ms, event: "joined", phase: null, detail: null });
    }
    this.#restructure();
    return group;
  }

  #remove(group: Group): void {
    this.#groups.delete(group.id);
    for (const [key, each] of this.#groupOf) {
      if (each === group) {
        this.#groupOf.delete(key);
        this.#sketches.delete(key);
      }
    }
    for (const lane of group.known()) {
      for (const track of lane.tracks) {
        this.#tracks.forget(track);
      }
    }
    this.#restructure();
  }

  /** A view shows the request now; what was drawn before goes, unless it is that view's own track. */
  #forgetSketch(agentKey: number, request: number, own: Track | undefined): void {
    const sketches = this.#sketches.get(agentKey);
    const track = sketches?.get(request);
    if (track !== undefined) {
      sketches?.delete(request);
      if (track !== own) {
        track.lane.remove(track);
      }
    }
  }

  #dropBefore(ms: number): void {
    for (const group of this.groups) {
      for (const lane of group.known()) {
        for (const track of lane.dropBefore(ms)) {
          this.#forget(track);
        }
      }
      const before = group.lanes;
      group.trim();
      if (group.lanes !== before) {
        this.#restructure();
      }
    }
  }

  #forget(track: Track): void {
    this.#tracks.forget(track);
    const sketches = this.#sketches.get(track.agentKey);
    if (sketches?.get(track.request) === track) {
      sketches.delete(track.request);
    }
  }

  #laneMayBeNew(group: Group): void {
    const lanes = group.lanes;
    if (this.#shown.get(group) !== lanes) {
      this.#shown.set(group, lanes);
      this.#restructure();
    }
  }

  #restructure(): void {
    this.structure += 1;
    this.#sorted = null;
  }
}
