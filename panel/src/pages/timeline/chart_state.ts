/** What the chart shows: kept apart from how it is drawn, so that buttons, keys and pointers do the same. */

import { batch, signal } from "@preact/signals";
import { hrefOf, navigate } from "../../core/router";
import type { Command } from "./commands";
import { type Cursor, onRow, placeOf, stepped } from "./cursor";
import type { Group } from "./group";
import { TimelineHistory } from "./history";
import type { Track } from "./lane";
import { type Row, rowAt, type Rows, rowsOf } from "./rows";
import * as viewports from "./viewport";
import type { Viewport } from "./viewport";

/** What is under the pointer. */
export interface Hovered {
  row: Row<Group>;
  track: Track | null;
  at_ms: number;
  clientX: number;
  clientY: number;
}

/** How near to a block is on it. */
const TOLERANCE = 4;

export class ChartState {
  readonly view = signal<Viewport>({ end_ms: 0, span_ms: 300_000, follows: true });
  readonly opened = signal<ReadonlyMap<string, boolean>>(new Map());
  readonly rows = signal<Rows<Group>>({ rows: [], height: 0 });
  readonly cursor = signal<Cursor | null>(null);
  readonly hovered = signal<Hovered | null>(null);
  /** Grows with each change of the history that is to be drawn. */
  readonly changes = signal(0);
  history = new TimelineHistory();
  /** The balancer's time that is drawn as now. */
  now_ms = 0;
  /** Pixels of the part with time. */
  width = 1;

  readonly #clock: () => number;
  #structure = -1;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  /** Move on with the time. */
  advance(): void {
    this.now_ms = this.#clock();
    this.view.value = viewports.settled(this.view.peek(), this.now_ms);
  }

  begin(history: TimelineHistory): void {
    this.history = history;
    this.#structure = -1;
    batch(() => {
      this.cursor.value = null;
      this.hovered.value = null;
      this.changed();
    });
  }

  /** The history has changed. */
  changed(): void {
    if (this.history.structure !== this.#structure) {
      this.#structure = this.history.structure;
      this.#layOut();
    }
    this.changes.value = this.changes.peek() + 1; // called in effects, which must not follow it
  }

  timeAt(x: number): number {
    const { end_ms, span_ms } = this.view.peek();
    return end_ms - span_ms * (1 - x / this.width);
  }

  pan(pixels: number): void {
    const { span_ms } = this.view.peek();
    this.view.value = viewports.panned(this.view.peek(), (-pixels / this.width) * span_ms, this.now_ms);
  }

  zoom(factor: number, fraction: number): void {
    this.view.value = viewports.zoomed(this.view.peek(), factor, fraction, this.now_ms);
  }

  /** Show a span of this length. */
  show(span_ms: number): void {
    this.zoom(span_ms / this.view.peek().span_ms, 1);
  }

  toggleFollow(): void {
    const view = this.view.peek();
    this.view.value = view.follows ? viewports.paused(view) : viewports.following(view, this.now_ms);
  }

  toggle(group: Group, open = !this.#isOpen(group)): void {
    this.opened.value = new Map(this.opened.peek()).set(group.id, open);
    this.#layOut();
  }

  /** `y` is below the axis, with the scrolling. */
  pointAt(x: number, y: number): Omit<Hovered, "clientX" | "clientY"> | null {
    const { rows } = this.rows.peek();
    const row = rows[rowAt(rows, y)];
    if (row === undefined) {
      return null;
    }
    const at_ms = this.timeAt(x);
    const tolerance_ms = (TOLERANCE / this.width) * this.view.peek().span_ms;
    const lane = row.lane === null ? null : row.source.lane(row.lane);
    return { row, track: lane?.at(at_ms, tolerance_ms) ?? null, at_ms };
  }

  press(x: number, y: number): void {
    const found = this.pointAt(x, y);
    if (found?.track) {
      openRequest(found.track);
    } else if (found !== null && found.row.lane === null) {
      this.toggle(found.row.source);
    }
  }

  /** False if the command does nothing here, so that the key is the browser's. */
  run(command: Command): boolean {
    const span_ms = this.view.peek().span_ms;
    switch (command) {
      case "zoom-in":
      case "zoom-out":
        this.zoom(command === "zoom-in" ? 1 / 1.5 : 1.5, 0.5);
        return true;
      case "pan-left":
      case "pan-right":
        this.pan(command === "pan-left" ? this.width / 5 : -this.width / 5);
        return true;
      case "oldest":
        this.view.value = viewports.panned(this.view.peek(), -viewports.KEEP_MS, this.now_ms);
        return true;
      case "now":
        this.view.value = viewports.following(this.view.peek(), this.now_ms);
        return true;
      case "pause":
        this.toggleFollow();
        return true;
      case "leave":
        this.cursor.value = null;
        return true;
      case "open":
        return this.#open();
      default:
        this.#step(command, span_ms);
        return true;
    }
  }

  #open(): boolean {
    const cursor = this.cursor.peek();
    if (cursor?.track) {
      openRequest(cursor.track);
    } else if (cursor?.lane === null) {
      this.toggle(cursor.group);
    }
    return cursor !== null;
  }

  #step(step: "up" | "down" | "earlier" | "later", span_ms: number): void {
    const cursor = this.cursor.peek();
    if (cursor !== null && cursor.lane === null && (step === "earlier" || step === "later")) {
      this.toggle(cursor.group, step === "later");
      return;
    }
    const view = this.view.peek();
    const middle = Math.min(this.now_ms, view.end_ms - span_ms / 2);
    const next = stepped(cursor, step, this.rows.peek().rows, cursor?.at_ms ?? middle);
    this.cursor.value = next;
    if (next?.track && (step === "earlier" || step === "later")) {
      const { start_ms, end_ms } = next.track;
      this.view.value = viewports.revealing(view, start_ms, end_ms ?? this.now_ms, this.now_ms);
    }
  }

  #isOpen(group: Group): boolean {
    return !this.rows.peek().rows.some((row) => row.source === group && row.collapsed);
  }

  #layOut(): void {
    const rows = rowsOf(this.history.groups, this.opened.peek());
    this.rows.value = rows;
    const cursor = this.cursor.peek();
    if (cursor !== null && placeOf(cursor, rows.rows) < 0) {
      const head = rows.rows[placeOf({ group: cursor.group, lane: null }, rows.rows)];
      this.cursor.value = onRow(head, cursor.at_ms);
    }
  }
}

export function openRequest(track: Track): void {
  navigate(hrefOf("requests", [track.request]));
}
