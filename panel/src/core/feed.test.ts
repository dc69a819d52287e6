import assert from "node:assert/strict";
import { test } from "node:test";
import type { FeedEvent, Topic } from "../types";
import { errorFrom } from "./api";
import { backOff, Feed, type FeedReader } from "./feed";
import { applied, type FeedState, lastEventId, NOTHING } from "./feed_state";

/** A balancer's side of one stream. */
class Stream {
  readonly body: ReadableStream<Uint8Array>;
  isAborted = false;
  #controller!: ReadableStreamDefaultController<Uint8Array>;

  constructor(
    readonly topics: string,
    readonly lastEventId: string | null,
    signal: AbortSignal,
  ) {
    this.body = new ReadableStream({
      start: (controller) => {
        this.#controller = controller;
      },
    });
    signal.addEventListener("abort", () => {
      this.isAborted = true;
      try {
        this.#controller.error(signal.reason);
      } catch {
        // it had ended already
      }
    });
  }

  send(event: Partial<FeedEvent>): void {
    const whole = { epoch: "e", seq: 1, full: false, now_ms: 0, time: "", set: {}, gone: {}, ...event };
    const text = `id: ${whole.epoch}.${whole.seq}\ndata: ${JSON.stringify(whole)}\n\n`;
    this.sendText(text);
  }

  sendText(text: string): void {
    this.#controller.enqueue(new TextEncoder().encode(text));
  }

  end(): void {
    this.#controller.close();
  }
}

/** A feed whose streams the test is the other end of. */
class World implements FeedReader {
  readonly feed = new Feed(this);
  state: FeedState = NOTHING;
  #streams: Stream[] = [];
  #waiting: ((stream: Stream) => void)[] = [];
  #received: (() => void)[] = [];

  constructor() {
    globalThis.location = { href: "http://panel.test/#/fleet" } as Location;
    globalThis.fetch = async (address, init) => {
      const url = new URL(String(address));
      const id = new Headers(init?.headers).get("Last-Event-ID");
      const stream = new Stream(url.searchParams.get("topics") ?? "", id, init?.signal as AbortSignal);
      const waiting = this.#waiting.shift();
      waiting ? waiting(stream) : this.#streams.push(stream);
      return new Response(stream.body);
    };
  }

  stream(): Promise<Stream> {
    const here = this.#streams.shift();
    return here ? Promise.resolve(here) : new Promise((resolve) => this.#waiting.push(resolve));
  }

  get hasMore(): boolean {
    return this.#streams.length > 0;
  }

  /** Until the next event was applied, or refused. */
  received(): Promise<void> {
    return new Promise((resolve) => this.#received.push(resolve));
  }

  lost(): Promise<void> {
    return new Promise((resolve) => {
      const stop = this.feed.connection.subscribe((connection) => {
        if (connection.state === "lost") {
          queueMicrotask(() => stop());
          resolve();
        }
      });
    });
  }

  lastEventId(topics: readonly Topic[]): string | null {
    return lastEventId(this.state, topics);
  }

  receive(event: FeedEvent, topics: readonly Topic[]): boolean {
    const { state, stale } = applied(this.state, event, topics);
    this.state = state;
    queueMicrotask(() => this.#received.shift()?.());
    return !stale;
  }

  agents(): unknown[] {
    return [...(this.state.topics.agents ?? [])];
  }
}

async function live(): Promise<{ world: World; stream: Stream }> {
  const world = new World();
  world.feed.want(["agents"]);
  world.feed.start();
  const stream = await world.stream();
  const received = world.received();
  stream.send({ full: true, set: { agents: { "1": "a" } } });
  await received;
  assert.equal(world.feed.connection.value.state, "live");
  return { world, stream };
}

test("a stream that ends is resumed where it ended", async () => {
  const { world, stream } = await live();
  const lost = world.lost();
  stream.end();
  await lost;
  world.feed.retryNow();
  const next = await world.stream();
  assert.equal(next.lastEventId, "e.1");
  const received = world.received();
  next.send({ seq: 4, set: { agents: { "2": "b" } } });
  await received;
  assert.deepEqual(world.agents(), [["1", "a"], ["2", "b"]]);
  assert.equal(world.feed.connection.value.state, "live");
  world.feed.stop();
});

test("a feed that is paused has no stream, and goes on after its last event", async () => {
  const { world, stream } = await live();
  world.feed.pause();
  assert.equal(stream.isAborted, true);
  assert.equal(world.feed.connection.value.state, "live", "nobody looks, so nothing is lost");
  world.feed.resume();
  const next = await world.stream();
  assert.equal(next.lastEventId, "e.1");
  world.feed.stop();
});

test("a network that is back gives no stream to a feed that is paused", async () => {
  const { world, stream } = await live();
  const lost = world.lost();
  stream.end();
  await lost;
  world.feed.pause();
  world.feed.retryNow();
  assert.equal(world.hasMore, false);
  world.feed.resume();
  await world.stream();
  world.feed.stop();
});

test("a balancer that began anew is followed from its full event on", async () => {
  const { world, stream } = await live();
  const lost = world.lost();
  stream.end();
  await lost;
  world.feed.retryNow();
  const next = await world.stream();
  const received = world.received();
  next.send({ epoch: "f", full: true, set: { agents: { "9": "z" } } });
  await received;
  assert.deepEqual(world.agents(), [["9", "z"]]);
  world.feed.stop();
});

test("a stream with an event that cannot be used is closed", async () => {
  const { world, stream } = await live();
  const lost = world.lost();
  stream.sendText("id: e.2\ndata: {\n\n");
  await lost;
  assert.equal(stream.isAborted, true);
  world.feed.stop();
});

test("a diff of an unknown epoch begins anew, without an id", async () => {
  const { world, stream } = await live();
  stream.send({ epoch: "f", seq: 7 });
  const next = await world.stream();
  assert.equal(next.lastEventId, null);
  world.feed.stop();
});

test("other topics take over with their first event, and the stream before goes on until then", async () => {
  const { world, stream } = await live();
  world.feed.want(["logs"]);
  const next = await world.stream();
  assert.equal(next.topics, "agents,logs");
  assert.equal(next.lastEventId, null);
  let received = world.received();
  stream.send({ seq: 2, set: { agents: { "1": "A" } } });
  await received;
  assert.deepEqual(world.agents(), [["1", "A"]]);
  assert.equal(stream.isAborted, false);
  received = world.received();
  next.send({ seq: 3, full: true, set: { agents: { "1": "B" }, logs: {} } });
  await received;
  assert.equal(stream.isAborted, true);
  assert.equal(world.feed.connection.value.state, "live");
  assert.deepEqual(Object.keys(world.state.topics), ["agents", "logs"]);
  world.feed.stop();
  assert.equal(next.isAborted, true);
});

test("a stream that is lost before it showed its other topics begins anew", async () => {
  const { world, stream } = await live();
  world.feed.want(["logs"]);
  const next = await world.stream();
  const lost = world.lost();
  next.end();
  await lost;
  assert.equal(stream.isAborted, true);
  world.feed.retryNow();
  world.feed.retryNow(); // the first one is under way
  const again = await world.stream();
  assert.equal(again.topics, "agents,logs");
  assert.equal(again.lastEventId, null);
  assert.equal(world.hasMore, false);
  world.feed.stop();
});

test("waits grow, have a limit, and differ between pages", () => {
  assert.equal(backOff(0, 1), 500);
  assert.equal(backOff(0, 0), 250);
  assert.equal(backOff(3, 1), 4000);
  assert.equal(backOff(50, 1), 8000);
});

test("an error's words and its field are found in every shape", () => {
  assert.equal(errorFrom(400, "state.deployments: too many").text, "state.deployments: too many");
  assert.equal(errorFrom(400, '{"error":"no","field":"a.b"}').field, "a.b");
  const openai = errorFrom(404, '{"error":{"message":"no such model","param":"model"}}');
  assert.equal(openai.text, "no such model");
  assert.equal(openai.field, "model");
  assert.match(errorFrom(504, "<html>Bad gateway</html>").text, /no answer/);
  assert.match(errorFrom(500, "").text, /status 500/);
});
