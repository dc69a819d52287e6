/**
 * Draws the picture on two canvases: what stands still below, what moves above.
 *
 * With hundreds of agents only what has changed is drawn anew, and frames are drawn only while something moves.
 */

import { Brush } from "./brush";
import { drawAgent, lookOf } from "./draw_agent";
import { drawHead } from "./draw_head";
import { type Box, cellBox, type Layout, layOut, nameBoxes, type Tile } from "./layout";
import { Particles, type Point } from "./particles";
import type { AgentShown, Picture } from "./picture";

/** After a longer pause (a hidden window, a lost stream) nothing moves: everything would at once. */
const PAUSE_MS = 3000;
/** Requests that move after one event start one after the other. */
const STAGGER_MS = 37;
const MAX_STAGGER_MS = 220;

type ClientOf = (request: number) => string;

export class Painter {
  layout: Layout | null = null;

  readonly #base: Brush;
  readonly #above: Brush;
  readonly #particles = new Particles();
  #shape = "";
  #picture: Picture | null = null;
  #shownAt = 0;
  #tiles = new Map<number, Tile>();
  /** By agent, what its drawing shows. */
  #drawn = new Map<number, { lanes: AgentShown["lanes"]; look: string }>();
  /** Of the picture before: requests that waited, and whose requests were whose. */
  #queued = new Set<number>();
  #clientBefore: ClientOf = () => "";
  #marked: Box | null = null;
  #frame = 0;

  constructor(base: HTMLCanvasElement, above: HTMLCanvasElement) {
    this.#base = new Brush(base);
    this.#above = new Brush(above);
  }

  /** The theme has changed: with the next picture everything is drawn anew. */
  repaint(): void {
    this.#base.renew();
    this.#above.renew();
    this.#shape = "";
  }

  end(): void {
    cancelAnimationFrame(this.#frame);
  }

  /** Show a picture in this width; `clientOf` finds the client of a request, "" if it is unknown. */
  show(picture: Picture, width: number, clientOf: ClientOf, moves: boolean): void {
    const isNew = this.#fit(picture, width);
    const layout = this.layout as Layout;
    const before = this.#picture;
    const now_ms = performance.now();
    if (moves && !isNew && before !== null && now_ms - this.#shownAt < PAUSE_MS) {
      this.#move(before, picture, layout, clientOf, now_ms);
    } else {
      this.#particles.clear();
    }
    this.#shownAt = now_ms;
    this.#picture = picture;
    this.#queued = new Set(picture.queues.flatMap((queue) => queue.keys));
    this.#clientBefore = clientOf;
    drawHead(this.#base, picture, layout);
    for (const each of picture.agents) {
      const tile = this.#tiles.get(each.agent.key);
      const drawn = this.#drawn.get(each.agent.key);
      const look = lookOf(each, layout);
      if (tile && !(drawn?.lanes === each.lanes && drawn.look === look)) {
        this.#drawn.set(each.agent.key, { lanes: each.lanes, look });
        drawAgent(this.#base, each, tile, layout, clientOf);
      }
    }
    this.#schedule();
  }

  /** A ring round a cell or a tile; null takes it away. */
  mark(box: Box | null): void {
    this.#marked = box;
    this.#schedule();
  }

  /** Lay out what has another shape than before; true if it has. */
  #fit(picture: Picture, width: number): boolean {
    const queues = picture.queues.map((each) => each.deployment);
    const agents = picture.agents.map(({ agent, count }) => ({
      key: agent.key,
      lanes: count,
      deployment: agent.deployment,
    }));
    const shape = JSON.stringify([width, devicePixelRatio, picture.clients.length, queues, agents]);
    if (shape === this.#shape && this.layout !== null) {
      return false;
    }
    this.#shape = shape;
    this.layout = layOut(width, agents, queues, picture.clients.length);
    this.#tiles = new Map(this.layout.tiles.map((tile) => [tile.key, tile]));
    this.#drawn.clear();
    this.#marked = null;
    this.#base.resize(width, this.layout.height);
    this.#above.resize(width, this.layout.height);
    return true;
  }

  #schedule(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame((now_ms) => this.#drawAbove(now_ms));
  }

  #drawAbove(now_ms: number): void {
    const layout = this.layout;
    if (layout === null) {
      return;
    }
    const { context, colors } = this.#above;
    context.clearRect(0, 0, layout.width, layout.height);
    this.#particles.draw(context, now_ms, layout.isNarrow);
    // Dots pass below the agents' names: what they draw there is taken away.
    for (const box of nameBoxes(layout)) {
      context.clearRect(box.x, box.y, box.width, box.height);
    }
    if (this.#marked) {
      const { x, y, width, height } = this.#marked;
      context.strokeStyle = colors.text;
      context.lineWidth = 1.5;
      context.strokeRect(x - 1.5, y - 1.5, width + 3, height + 3);
    }
    if (!this.#particles.isEmpty) {
      this.#schedule();
    }
  }

  /** What moved since the picture before. */
  #move(before: Picture, after: Picture, layout: Layout, clientOf: ClientOf, now_ms: number): void {
    const { colors } = this.#base;
    let delay_ms = 0;
    const send = (from: Point | null, to: Point | null, color: string): void => {
      if (from && to) {
        this.#particles.add(from, to, color, now_ms, delay_ms);
        delay_ms = (delay_ms + STAGGER_MS) % MAX_STAGGER_MS;
      }
    };
    const wasIn = new Map(before.agents.map((each) => [each.agent.key, each.lanes]));
    for (const each of after.agents) {
      const known = wasIn.get(each.agent.key);
      const tile = this.#tiles.get(each.agent.key);
      if (known === undefined || known === each.lanes || tile === undefined) {
        continue;
      }
      each.lanes.forEach((now, lane) => {
        const then = known[lane] ?? null;
        if (now?.request === then?.request) {
          return;
        }
        const cell = middle(cellBox(tile, lane, layout));
        if (then) {
          send(cell, clientPoint(this.#clientBefore(then.request), after, layout), colors.d);
        }
        if (now) {
          const from = this.#queued.has(now.request)
            ? queuePoint(each.agent.deployment, layout)
            : clientPoint(clientOf(now.request), after, layout);
          send(from, cell, colors.p);
        }
      });
    }
    for (const queue of after.queues) {
      for (const key of queue.keys) {
        if (!this.#queued.has(key)) {
          send(clientPoint(clientOf(key), after, layout), queuePoint(queue.deployment, layout), colors.q);
        }
      }
    }
  }
}

/** Where a client's requests leave; those of unknown ones where the last client is. */
function clientPoint(name: string, picture: Picture, layout: Layout): Point | null {
  const own = picture.clients.findIndex((client) => client.name === name);
  const box = layout.clients[own < 0 ? picture.clients.length - 1 : own];
  return box ? { x: layout.isNarrow ? box.x + box.width / 2 : box.x + box.width, y: box.y + box.height / 2 } : null;
}

function queuePoint(deployment: string, layout: Layout): Point | null {
  const box = layout.queues.find((queue) => queue.deployment === deployment);
  return box ? middle(box) : null;
}

function middle(box: Box): Point {
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}
