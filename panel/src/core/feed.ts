/**
 * The stream of the balancer's events: one connection for the page, whatever is shown.
 *
 * It is read with `fetch`, since an EventSource hides the status of a refusal, and cannot resume once its topics change.
 */

import { signal } from "@preact/signals";
import type { FeedEvent, Topic } from "../types";
import { ApiError, request } from "./api";
import { EventStreamParser } from "./event_stream";

export type Connection =
  | { state: "connecting"; since: number }
  | { state: "live"; since: number }
  /** Times are the browser's `Date.now()`; `retryAt` is null while the next try is under way. */
  | { state: "lost"; since: number; retryAt: number | null; reason: string };

export interface FeedReader {
  /** What `Last-Event-ID` resumes, null to begin anew: a topic of these may never have been received. */
  lastEventId(topics: readonly Topic[]): string | null;
  /** False if the event cannot be used: the feed begins anew. */
  receive(event: FeedEvent, topics: readonly Topic[]): boolean;
}

/** The balancer sends a comment after 3 s without news. */
const SILENCE_MS = 10_000;
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 8_000;
/** A page that leaves and one that comes change the topics at once. */
const TOPICS_SETTLE_MS = 20;

/** How long to wait before try number `attempt`, from 0; `random` is 0..1. */
export function backOff(attempt: number, random: number): number {
  const most = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** Math.min(attempt, 10));
  return Math.round(most * (0.5 + random / 2));
}

export class Feed {
  readonly connection = signal<Connection>({ state: "connecting", since: Date.now() });

  readonly #reader: FeedReader;
  readonly #wanted = new Map<Topic, number>();
  #running = false;
  #isPaused = false;
  #topics: readonly Topic[] = [];
  /** Open streams by their number; events count only if no newer stream had one. */
  readonly #open = new Map<number, AbortController>();
  #streams = 0;
  #attempt = 0;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #settle: ReturnType<typeof setTimeout> | undefined;

  constructor(reader: FeedReader) {
    this.#reader = reader;
  }

  /** Receive these topics until the returned function is called. */
  want(topics: readonly Topic[]): () => void {
    for (const topic of topics) {
      this.#wanted.set(topic, (this.#wanted.get(topic) ?? 0) + 1);
    }
    this.#topicsMayDiffer();
    return () => {
      for (const topic of topics) {
        const left = (this.#wanted.get(topic) ?? 0) - 1;
        if (left > 0) {
          this.#wanted.set(topic, left);
        } else {
          this.#wanted.delete(topic);
        }
      }
      this.#topicsMayDiffer();
    };
  }

  start(): void {
    if (!this.#running) {
      this.#running = true;
      this.#attempt = 0;
      this.connection.value = { state: "connecting", since: Date.now() };
      this.#topicsMayDiffer();
    }
  }

  stop(): void {
    this.#running = false;
    this.#isPaused = false;
    this.#topics = [];
    clearTimeout(this.#retry);
    clearTimeout(this.#settle);
    this.#abortBefore(Number.POSITIVE_INFINITY);
  }

  /** Nobody looks: let go of the stream, and keep what it has shown. */
  pause(): void {
    if (this.#running && !this.#isPaused) {
      this.#isPaused = true;
      clearTimeout(this.#retry);
      this.#abortBefore(Number.POSITIVE_INFINITY);
    }
  }

  /** Somebody looks again: go on after the last event that came. */
  resume(): void {
    if (this.#isPaused) {
      this.#isPaused = false;
      this.#attempt = 0;
      if (this.#running && this.#topics.length) {
        this.#connect(this.#topics, true);
      }
    }
  }

  /** Try at once: the viewer asked for it, or the network is back. Nobody looks at a paused one. */
  retryNow(): void {
    const known = this.connection.value;
    if (this.#running && !this.#isPaused && known.state === "lost" && known.retryAt !== null) {
      this.#attempt = 0;
      this.#connect(this.#topics, true);
    }
  }

  #topicsMayDiffer(): void {
    clearTimeout(this.#settle);
    this.#settle = setTimeout(() => {
      const topics = [...this.#wanted.keys()].sort();
      if (this.#running && topics.length && topics.join() !== this.#topics.join()) {
        this.#topics = topics;
        if (!this.#isPaused) {
          this.#connect(topics, false);
        }
      }
    }, TOPICS_SETTLE_MS);
  }

  /** Open one more stream. The one before goes on until this one has shown its first event. */
  #connect(topics: readonly Topic[], resumes: boolean): void {
    clearTimeout(this.#retry);
    this.#streams += 1;
    const number = this.#streams;
    const abort = new AbortController();
    this.#open.set(number, abort);
    const known = this.connection.value;
    if (known.state === "lost") {
      this.connection.value = { ...known, retryAt: null };
    }
    this.#read(number, topics, resumes, abort).then(
      () => this.#lost(number, "The balancer ended the stream."),
      (error: unknown) => this.#lost(number, reasonOf(error)),
    );
  }

  #abortBefore(number: number): void {
    for (const [each, abort] of this.#open) {
      if (each < number) {
        this.#open.delete(each);
        abort.abort();
      }
    }
  }

  async #read(number: number, topics: readonly Topic[], resumes: boolean, abort: AbortController): Promise<void> {
    const id = resumes ? this.#reader.lastEventId(topics) : null;
    const silence = new Deadline(SILENCE_MS, () => abort.abort(new Error("The balancer is silent.")));
    try {
      const response = await request(`api/v2/events?topics=${topics.join(",")}`, {
        headers: { accept: "text/event-stream", ...(id === null ? {} : { "Last-Event-ID": id }) },
        signal: abort.signal,
      });
      if (response.body === null) {
        throw new Error("The stream has no body.");
      }
      const parser = new EventStreamParser();
      const text = new TextDecoder();
      const reader = response.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        silence.extend();
        if (done) {
          return;
        }
        for (const event of parser.feed(text.decode(value, { stream: true }))) {
          if (!this.#open.has(number)) {
            return;
          }
          this.#abortBefore(number);
          this.#receive(JSON.parse(event.data) as FeedEvent, topics, number);
        }
      }
    } catch (error) {
      throw abort.signal.reason instanceof Error ? abort.signal.reason : error;
    } finally {
      silence.end();
      abort.abort(); // a browser has six connections for a host: none may stay behind
    }
  }

  #receive(event: FeedEvent, topics: readonly Topic[], number: number): void {
    if (!this.#reader.receive(event, topics)) {
      this.#abortBefore(number + 1);
      this.#connect(topics, false);
      return;
    }
    this.#attempt = 0;
    if (this.connection.value.state !== "live") {
      this.connection.value = { state: "live", since: Date.now() };
    }
  }

  /** A stream is over. That matters if it was the newest one; one before it only kept the page up to date meanwhile. */
  #lost(number: number, reason: string): void {
    if (!this.#open.delete(number) || number !== this.#streams || !this.#running) {
      return;
    }
    this.#abortBefore(number);
    const delay_ms = backOff(this.#attempt, Math.random());
    this.#attempt += 1;
    const known = this.connection.value;
    this.connection.value = {
      state: "lost",
      since: known.state === "lost" ? known.since : Date.now(),
      retryAt: Date.now() + delay_ms,
      reason,
    };
    this.#retry = setTimeout(() => this.#connect(this.#topics, true), delay_ms);
  }
}

class Deadline {
  readonly #ms: number;
  readonly #then: () => void;
  #timer: ReturnType<typeof setTimeout>;

  constructor(ms: number, then: () => void) {
    this.#ms = ms;
    this.#then = then;
    this.#timer = setTimeout(then, ms);
  }

  extend(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.#then, this.#ms);
  }

  end(): void {
    clearTimeout(this.#timer);
  }
}

function reasonOf(error: unknown): string {
  if (error instanceof ApiError) {
    return error.text;
  }
  return error instanceof TypeError ? "The connection broke." : String((error as Error)?.message ?? error);
}
