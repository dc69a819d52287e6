/** Fills the history: with what the balancer remembers, then with what its feed says. */

import { effect, signal } from "@preact/signals";
import { api } from "../../core/api";
import { store } from "../../core/store";
import { now } from "../../core/time";
import type { AgentHistory, RequestList, RequestView } from "../../types";
import type { ChartState } from "./chart_state";
import { TimelineHistory } from "./history";

/** How far back the chart begins. */
const BACK_MS = 300_000;
const PAGE = 1000;
/** What is fetched at most at the beginning. */
const MAX_PAGES = 4;
/** Events come up to a quarter of a second late; a picture that is older by more never has to take a block back. */
const LATE_MS = 500;
const PRUNE_MS = 1000;

export class TimelineSource {
  readonly loading = signal(true);
  readonly error = signal<unknown>(null);
  /** The beginning was cut off at the newest requests. */
  readonly partial = signal(false);
  #state: ChartState | null = null;
  #started: string | null = null;
  #frozen_ms: number | null = null;
  #requests: ReadonlyMap<string, RequestView> = new Map();
  #pruned_ms = 0;
  #loads = 0;

  /** The time that is drawn as now; it stands still while the stream is lost. */
  readonly clock = (): number => {
    if (store.connection.peek().state === "live") {
      this.#frozen_ms = Math.max(0, now() - LATE_MS);
    }
    return this.#frozen_ms ?? Math.max(0, now() - LATE_MS);
  };

  /** Keep the state up to date until the returned function is called. */
  follow(state: ChartState): () => void {
    this.#state = state;
    const ends = [
      effect(() => {
        // A balancer that was started anew has another clock, and a stream that was lost has a gap.
        const started = store.balancer.value?.started ?? null;
        const isLive = store.connection.value.state === "live";
        if (started !== null && isLive) {
          this.#begin(started);
        } else if (!isLive) {
          this.#started = null;
        }
      }),
      effect(() => {
        const agents = store.agents.value;
        if (store.known.value.has("agents")) {
          state.history.takeAgents(agents, now());
          this.#changed();
        }
      }),
      effect(() => {
        const requests = store.requests.value;
        this.#takeRequests(requests);
        this.#changed();
      }),
      effect(() => {
        const balancer = store.balancer.value;
        if (balancer !== null) {
          state.history.takeWaiting(balancer.buffer.waiting, now());
        }
      }),
    ];
    return () => {
      this.#state = null;
      this.#loads += 1;
      for (const end of ends) {
        end();
      }
    };
  }

  retry(): void {
    if (this.#started !== null) {
      void this.#load();
    }
  }

  #begin(started: string): void {
    if (started !== this.#started) {
      this.#started = started;
      void this.#load();
    }
  }

  async #load(): Promise<void> {
    this.#loads += 1;
    const load = this.#loads;
    this.error.value = null;
    try {
      const since = Math.max(0, Math.floor(now() - BACK_MS));
      const events = api.get<AgentHistory>(`api/v2/agents/history?since_ms=${since}`);
      const views: RequestView[] = [];
      let before: number | null = null;
      for (let page = 0; page < MAX_PAGES; page += 1) {
        const more: string = before === null ? "" : `&before=${before}`;
        const list: RequestList = await api.get(`api/v2/requests?state=all&limit=${PAGE}&since_ms=${since}${more}`);
        views.push(...list.requests);
        before = list.next;
        if (before === null) {
          break;
        }
      }
      const { events: happened } = await events;
      if (load !== this.#loads || this.#state === null) {
        return;
      }
      this.partial.value = before !== null;
      const history = new TimelineHistory();
      history.begin(views, happened, now());
      history.takeAgents(store.agents.peek(), now());
      history.take(store.requests.peek().values(), now());
      history.takeWaiting(store.balancer.peek()?.buffer.waiting ?? 0, now());
      this.#requests = store.requests.peek();
      this.#state.advance();
      this.#state.begin(history);
      this.loading.value = false;
    } catch (error) {
      if (load === this.#loads) {
        this.error.value = error;
        this.loading.value = false;
      }
    }
  }

  #takeRequests(requests: ReadonlyMap<string, RequestView>): void {
    const before = this.#requests;
    this.#requests = requests;
    const history = this.#state?.history;
    if (history === undefined || requests === before) {
      return;
    }
    const at_ms = now();
    const changed: RequestView[] = [];
    for (const [key, view] of requests) {
      if (before.get(key) !== view) {
        changed.push(view);
      }
    }
    history.take(changed, at_ms);
    const gone: number[] = [];
    for (const key of before.keys()) {
      if (!requests.has(key)) {
        gone.push(Number(key));
      }
    }
    history.gone(gone, at_ms);
  }

  #changed(): void {
    const at_ms = now();
    if (this.#state !== null) {
      if (at_ms - this.#pruned_ms >= PRUNE_MS || at_ms < this.#pruned_ms) {
        this.#pruned_ms = at_ms;
        this.#state.history.prune(at_ms);
      }
      this.#state.changed();
    }
  }
}
