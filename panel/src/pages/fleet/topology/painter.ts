/**
 * Draws the picture on two canvases: what stands still below, what moves above.
 *
 * With hundreds of agents only what has changed is drawn anew, and frames are drawn only while something moves.
 */

import { formatAge, formatCount, formatRate } from "../../../core/format";
import { themeColor } from "../../../core/theme";
import type { LanePhase } from "../../../types";
import { type Box, cellBox, type Layout, layOut, type Tile } from "./layout";
import { Particles, type Point } from "./particles";
import type { AgentShown, Picture } from "./picture";

const TOKENS = {
  surface: "--surface",
  sunken: "--sunken",
  line: "--line",
  lineStrong: "--line-strong",
  text: "--text",
  muted: "--muted",
  accent: "--accent",
  q: "--c-queue",
  p: "--c-prefill",
  d: "--c-decode",
  s: "--c-stop",
  idle: "--c-idle",
  onCell: "--on-cell",
  ok: "--ok",
  warn: "--warn",
  bad: "--bad",
  info: "--info",
  quiet: "--c-stop",
} as const;

type Colors = Record<keyof typeof TOKENS, string>;

/** Cells from this width on have a name. */
const MIN_NAMED = 56;
const DOT = 7;
const DOT_GAP = 3;

export class Painter {
  layout: Layout | null = null;

  readonly #base: CanvasRenderingContext2D;
  readonly #above: CanvasRenderingContext2D;
  readonly #particles = new Particles();
  #colors: Colors = readColors();
  #font = "system-ui, sans-serif";
  #shape = "";
  #picture: Picture | null = null;
  #drawn = new Map<number, string | AgentShown["lanes"]>();
  #drawnState = new Map<number, string>();
  #tiles = new Map<number, Tile>();
  #queued = new Set<number>();
  /** Of the requests in lanes. */
  #clients = new Map<number, string>();
  #shownAt = 0;
  #frame = 0;

  constructor(base: HTMLCanvasElement, above: HTMLCanvasElement) {
    const contexts = [base.getContext("2d"), above.getContext("2d")];
    if (!contexts[0] || !contexts[1]) {
      throw new Error("This browser draws on no canvas.");
    }
    [this.#base, this.#above] = contexts as [CanvasRenderingContext2D, CanvasRenderingContext2D];
  }

  /** Colours have changed: everything is drawn anew. */
  repaint(): void {
    this.#colors = readColors();
    this.#font = getComputedStyle(document.body).fontFamily;
    this.#shape = "";
  }

  end(): void {
    cancelAnimationFrame(this.#frame);
  }

  /** Show a picture in this width; `clientOf` finds the client of a request, "" if it is unknown. */
  show(picture: Picture, width: number, clientOf: (request: number) => string, moves: boolean): void {
    const shapes = picture.agents.map((each) => ({
      key: each.agent.key,
      lanes: each.count,
      deployment: each.agent.deployment,
    }));
    const shape = `${width} ${devicePixelRatio} ${picture.clients.length} ${picture.queues.map((each) => each.deployment).join()} ${shapes
      .map((each) => `${each.key}:${each.lanes}:${each.deployment}`)
      .join()}`;
    const isNew = shape !== this.#shape || this.layout === null;
    if (isNew) {
      this.#shape = shape;
      this.layout = layOut(width, shapes, picture.queues.map((each) => each.deployment), picture.clients.length);
      this.#tiles = new Map(this.layout.tiles.map((tile) => [tile.key, tile]));
      this.#drawn.clear();
      this.#drawnState.clear();
      this.#resize(this.layout);
    }
    const layout = this.layout as Layout;
    const before = this.#picture;
    const now_ms = performance.now();
    // After a pause (a hidden window, a lost stream) everything would move at once.
    const follows = moves && !isNew && before !== null && now_ms - this.#shownAt < 3000;
    this.#shownAt = now_ms;
    this.#picture = picture;
    if (follows) {
      this.#move(before, picture, layout, clientOf, now_ms);
    } else {
      this.#particles.clear();
    }
    this.#remember(picture, clientOf);
    this.#drawHead(picture, layout);
    for (const each of picture.agents) {
      this.#drawAgent(each, layout);
    }
    this.#schedule();
  }

  /** A ring round a cell or a tile; null takes it away. */
  mark(box: Box | null): void {
    this.#marked = box;
    this.#schedule();
  }

  #marked: Box | null = null;

  #resize(layout: Layout): void {
    for (const context of [this.#base, this.#above]) {
      const { canvas } = context;
      canvas.width = Math.round(layout.width * devicePixelRatio);
      canvas.height = Math.round(layout.height * devicePixelRatio);
      canvas.style.width = `${layout.width}px`;
      canvas.style.height = `${layout.height}px`;
      context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    }
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
    const context = this.#above;
    context.clearRect(0, 0, layout.width, layout.height);
    this.#particles.draw(context, now_ms, layout.isNarrow);
    if (this.#marked) {
      const { x, y, width, height } = this.#marked;
      context.strokeStyle = this.#colors.text;
      context.lineWidth = 1.5;
      context.strokeRect(x - 1.5, y - 1.5, width + 3, height + 3);
    }
    if (!this.#particles.isEmpty) {
      this.#schedule();
    }
  }

  /** What moved since the picture before. */
  #move(
    before: Picture,
    after: Picture,
    layout: Layout,
    clientOf: (request: number) => string,
    now_ms: number,
  ): void {
    let delay_ms = 0;
    const send = (from: Point | null, to: Point | null, color: string): void => {
      if (from && to) {
        this.#particles.add(from, to, color, now_ms, delay_ms);
        delay_ms = (delay_ms + 37) % 220;
      }
    };
    const wasIn = new Map<number, AgentShown["lanes"]>(before.agents.map((each) => [each.agent.key, each.lanes]));
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
          send(cell, this.#clientPoint(this.#clients.get(then.request) ?? "", after, layout), this.#colors.d);
        }
        if (now) {
          const from = this.#queued.has(now.request)
            ? this.#queuePoint(each.agent.deployment, layout)
            : this.#clientPoint(clientOf(now.request), after, layout);
          send(from, cell, this.#colors.p);
        }
      });
    }
    for (const queue of after.queues) {
      for (const key of queue.keys) {
        if (!this.#queued.has(key)) {
          send(
            this.#clientPoint(clientOf(key), after, layout),
            this.#queuePoint(queue.deployment, layout),
            this.#colors.q,
          );
        }
      }
    }
  }

  #remember(picture: Picture, clientOf: (request: number) => string): void {
    this.#queued = new Set(picture.queues.flatMap((queue) => queue.keys));
    this.#clients = new Map();
    for (const each of picture.agents) {
      for (const lane of each.lanes) {
        if (lane) {
          this.#clients.set(lane.request, clientOf(lane.request));
        }
      }
    }
  }

  #clientPoint(name: string, picture: Picture, layout: Layout): Point | null {
    const own = picture.clients.findIndex((client) => client.name === name);
    const box = layout.clients[own < 0 ? picture.clients.length - 1 : own];
    return box ? { x: layout.isNarrow ? box.x + box.width / 2 : box.x + box.width, y: box.y + box.height / 2 } : null;
  }

  #queuePoint(deployment: string, layout: Layout): Point | null {
    const box = layout.queues.find((queue) => queue.deployment === deployment);
    return box ? middle(box) : null;
  }

  #text(size: number, weight = 400): string {
    return `${weight} ${size}px ${this.#font}`;
  }

  /** Clients, queues, and the lines between all. */
  #drawHead(picture: Picture, layout: Layout): void {
    const context = this.#base;
    const colors = this.#colors;
    const from = layout.groups[0];
    if (layout.isNarrow) {
      context.clearRect(0, 0, layout.width, (from?.y ?? layout.height) - 2);
    } else {
      context.clearRect(0, 0, from ? from.x - 2 : layout.width, layout.height);
      context.clearRect(0, 0, layout.width, (from?.y ?? layout.height) - 2);
    }
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = colors.muted;
    context.font = this.#text(12);
    const [client] = layout.clients;
    const [queue] = layout.queues;
    if (client) {
      context.fillText("Clients", 0, client.y > 28 && !layout.isNarrow ? client.y - 14 : 10);
    }
    if (queue) {
      context.fillText(layout.queues.length > 1 ? "Queues" : "Queue", queue.x, queue.y - 14);
    }
    if (from) {
      context.fillText("Agents and their slots", from.x, from.y - 16);
    }
    if (!layout.isNarrow) {
      this.#drawLines(picture, layout);
    }
    picture.clients.forEach((each, place) => {
      const box = layout.clients[place];
      if (box) {
        this.#drawClient(box, each.name, each.count);
      }
    });
    for (const each of picture.queues) {
      const box = layout.queues.find((known) => known.deployment === each.deployment);
      if (box) {
        this.#drawQueue(box, each, picture.queues.length > 1);
      }
    }
  }

  #drawLines(picture: Picture, layout: Layout): void {
    const context = this.#base;
    const line = (from: Point, to: Point, isBusy: boolean): void => {
      const bend = (from.x + to.x) / 2;
      context.strokeStyle = isBusy ? this.#colors.lineStrong : this.#colors.line;
      context.lineWidth = isBusy ? 1.5 : 1;
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.bezierCurveTo(bend, from.y, bend, to.y, to.x, to.y);
      context.stroke();
    };
    layout.clients.forEach((box, place) => {
      for (const queue of layout.queues) {
        if (!picture.clients[place]?.uses.has(queue.deployment)) {
          continue;
        }
        line(
          { x: box.x + box.width, y: box.y + box.height / 2 },
          { x: queue.x, y: queue.y + queue.height / 2 },
          true,
        );
      }
    });
    const shown = new Map(picture.agents.map((each) => [each.agent.key, each]));
    for (const queue of layout.queues) {
      const from = { x: queue.x + queue.width, y: queue.y + queue.height / 2 };
      const group = layout.groups.find((each) => each.deployment === queue.deployment);
      if (group === undefined) {
        continue;
      }
      if (layout.names === "before") {
        for (const tile of layout.tiles) {
          const agent = shown.get(tile.key);
          if (agent?.agent.deployment === queue.deployment) {
            line(from, { x: tile.x - 2, y: tile.y + tile.height / 2 }, agent.agent.lanes.length > 0);
          }
        }
      } else {
        const x = group.x - 10;
        line(from, { x, y: group.y + group.height / 2 }, true);
        context.strokeStyle = this.#colors.lineStrong;
        context.beginPath();
        context.moveTo(x + 4, group.y);
        context.lineTo(x, group.y + 4);
        context.lineTo(x, group.y + group.height - 4);
        context.lineTo(x + 4, group.y + group.height);
        context.stroke();
      }
    }
  }

  #drawClient(box: Box, name: string, count: number): void {
    const context = this.#base;
    context.globalAlpha = count > 0 ? 1 : 0.55;
    this.#box(box, this.#colors.surface, this.#colors.line, 14);
    context.font = this.#text(12);
    context.textAlign = "right";
    context.fillStyle = this.#colors.muted;
    const number = formatCount(count);
    context.fillText(number, box.x + box.width - 12, box.y + box.height / 2 + 0.5);
    context.textAlign = "left";
    context.fillStyle = this.#colors.text;
    const room = box.width - 32 - context.measureText(number).width;
    context.fillText(this.#cut(name, room), box.x + 12, box.y + box.height / 2 + 0.5);
    context.globalAlpha = 1;
  }

  #drawQueue(box: Box, queue: Picture["queues"][number], isNamed: boolean): void {
    const context = this.#base;
    this.#box(box, this.#colors.surface, queue.waiting > 0 ? this.#colors.q : this.#colors.line, 10);
    context.font = this.#text(12, 550);
    context.fillStyle = this.#colors.text;
    context.textAlign = "left";
    const words = queue.waiting === 0 ? (isNamed ? queue.deployment : "empty") : isNamed ? queue.deployment : "waiting";
    context.textAlign = "right";
    context.fillText(String(queue.waiting), box.x + box.width - 12, box.y + 16);
    context.textAlign = "left";
    context.font = this.#text(12);
    context.fillStyle = this.#colors.muted;
    context.fillText(this.#cut(words, box.width - 60), box.x + 12, box.y + 16);
    const perLine = Math.floor((box.width - 24 + DOT_GAP) / (DOT + DOT_GAP));
    const room = perLine * 2;
    const dots = Math.min(queue.waiting, room);
    context.fillStyle = this.#colors.q;
    context.beginPath();
    for (let place = 0; place < dots; place += 1) {
      // The head of the queue is at the right, where the agents are.
      const x = box.x + box.width - 12 - DOT / 2 - (place % perLine) * (DOT + DOT_GAP);
      const y = box.y + 34 + Math.floor(place / perLine) * (DOT + DOT_GAP);
      context.moveTo(x + DOT / 2, y);
      context.arc(x, y, DOT / 2, 0, 2 * Math.PI);
    }
    context.fill();
    if (queue.oldest_wait_ms !== null && queue.waiting > 0 && dots <= perLine) {
      context.fillStyle = this.#colors.muted;
      context.font = this.#text(11);
      context.fillText(`longest ${formatAge(queue.oldest_wait_ms)}`, box.x + 12, box.y + 50);
    }
  }

  #drawAgent(shown: AgentShown, layout: Layout): void {
    const tile = this.#tiles.get(shown.agent.key);
    if (tile === undefined) {
      return;
    }
    const { agent, lanes, state } = shown;
    const isServing = agent.slots_total > 0;
    const rate = agent.rates && layout.names === "before" ? Math.round(agent.rates.generated_tokens_per_s) : "";
    const look = `${state.tone} ${state.word} ${agent.label} ${isServing} ${rate}`;
    if (this.#drawn.get(agent.key) === lanes && this.#drawnState.get(agent.key) === look) {
      return;
    }
    this.#drawn.set(agent.key, lanes);
    this.#drawnState.set(agent.key, look);
    const context = this.#base;
    context.clearRect(tile.x - 1, tile.y - 1, tile.width + 2, tile.height + 2);
    const isTroubled = state.tone === "bad" || state.tone === "warn";
    const edge = isTroubled ? this.#colors[state.tone] : this.#colors.line;
    if (layout.names === "none") {
      context.fillStyle = isTroubled ? edge : this.#colors.surface;
      context.fillRect(tile.x, tile.y, tile.width, tile.height);
    } else {
      this.#box(tile, this.#colors.surface, edge, 8);
    }
    if (layout.names === "before") {
      this.#drawRowText(shown, tile, layout);
    } else if (layout.names === "above") {
      context.font = this.#text(11);
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = isTroubled ? edge : this.#colors.muted;
      context.fillText(this.#cut(agent.label, tile.width - 12), tile.left, tile.y + 13);
    }
    this.#drawCells(shown, tile, layout, isServing);
  }

  #drawRowText({ agent, state }: AgentShown, tile: Tile, layout: Layout): void {
    const context = this.#base;
    const y = tile.y + tile.height / 2 + 0.5;
    context.textBaseline = "middle";
    context.fillStyle = this.#colors[state.tone];
    context.beginPath();
    context.arc(tile.x + 14, y, 3.5, 0, 2 * Math.PI);
    context.fill();
    context.font = this.#text(12, 500);
    context.textAlign = "left";
    context.fillStyle = this.#colors.text;
    context.fillText(this.#cut(agent.label, tile.left - tile.x - 34), tile.x + 24, y);
    const end = tile.left + tile.columns * (layout.cellWidth + layout.gap);
    const room = tile.x + tile.width - end - 16;
    context.font = this.#text(12);
    context.textAlign = "right";
    const isBusy = state.word === "serving";
    context.fillStyle = isBusy ? this.#colors.muted : this.#colors[state.tone === "quiet" ? "muted" : state.tone];
    const words = isBusy && agent.rates ? formatRate(Math.round(agent.rates.generated_tokens_per_s), "tok") : state.word;
    if (room > 48) {
      context.fillText(this.#cut(words, room), tile.x + tile.width - 12, y);
    }
  }

  /** One path for each colour: a thousand agents have tens of thousands of cells. */
  #drawCells({ lanes, count }: AgentShown, tile: Tile, layout: Layout, isServing: boolean): void {
    const context = this.#base;
    const round = layout.cell >= 8 ? 3 : layout.cell >= 5 ? 1 : 0;
    const paths = new Map<LanePhase | "idle", Box[]>();
    for (let lane = 0; lane < Math.max(count, lanes.length); lane += 1) {
      const phase = lanes[lane]?.phase ?? "idle";
      const boxes = paths.get(phase) ?? [];
      boxes.push(cellBox(tile, lane, layout));
      paths.set(phase, boxes);
    }
    for (const [phase, boxes] of paths) {
      context.beginPath();
      for (const box of boxes) {
        if (round > 0) {
          context.roundRect(box.x, box.y, box.width, box.height, round);
        } else {
          context.rect(box.x, box.y, box.width, box.height);
        }
      }
      if (phase === "idle" && !isServing && layout.cell >= 6) {
        context.strokeStyle = this.#colors.lineStrong;
        context.lineWidth = 1;
        context.stroke();
      } else {
        context.fillStyle = this.#colors[phase];
        context.fill();
      }
    }
    if (layout.cellWidth >= MIN_NAMED) {
      this.#drawNames(lanes, tile, layout);
    }
  }

  /** In wide cells, whose requests they are. */
  #drawNames(lanes: AgentShown["lanes"], tile: Tile, layout: Layout): void {
    const context = this.#base;
    context.font = this.#text(11);
    context.textAlign = "left";
    context.fillStyle = this.#colors.onCell;
    lanes.forEach((lane, place) => {
      const name = lane && this.#clients.get(lane.request);
      if (name) {
        const box = cellBox(tile, place, layout);
        context.fillText(this.#cut(name, box.width - 12), box.x + 6, box.y + box.height / 2 + 0.5);
      }
    });
  }

  #box(box: Box, fill: string, stroke: string, radius: number): void {
    const context = this.#base;
    context.beginPath();
    context.roundRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1, radius);
    context.fillStyle = fill;
    context.fill();
    context.strokeStyle = stroke;
    context.lineWidth = 1;
    context.stroke();
  }

  #cut(text: string, room: number): string {
    if (this.#base.measureText(text).width <= room) {
      return text;
    }
    let cut = text;
    while (cut.length > 1 && this.#base.measureText(`${cut}…`).width > room) {
      cut = cut.slice(0, -1);
    }
    return `${cut}…`;
  }
}

function middle(box: Box): Point {
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
}

function readColors(): Colors {
  return Object.fromEntries(Object.entries(TOKENS).map(([name, token]) => [name, themeColor(token)])) as Colors;
}
