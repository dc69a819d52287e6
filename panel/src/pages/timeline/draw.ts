/** Draws the chart. Everything is in device pixels; blocks lie on whole ones, so they are sharp and move together. */

import { formatTime } from "../../core/format";
import { wallTime } from "../../core/time";
import type { StateSpan } from "./agent_states";
import type { Cursor } from "./cursor";
import type { Group } from "./group";
import { type Block, blocksOf, type Lane, type Track } from "./lane";
import type { Paint } from "./paint";
import { TILE } from "./paint";
import { type Row, type Rows, rowsBetween } from "./rows";
import { peak, roundScale, Strip } from "./strip";
import { axisStep, type Viewport } from "./viewport";

export const AXIS_HEIGHT = 28;
/** CSS pixels of a block; what is left of the lane is its gap. */
const BLOCK_HEIGHT = 14;
const CHARACTER = 6.3;

export interface Scene {
  pen: CanvasRenderingContext2D;
  /** CSS pixels. */
  width: number;
  height: number;
  ratio: number;
  rows: Rows<Group>;
  /** How far the rows are scrolled. */
  scrolled: number;
  view: Viewport;
  now_ms: number;
  paint: Paint;
  cursor: Cursor | null;
  hovered: Track | null;
  strips: WeakMap<Group, Strip>;
}

/** Times and pixels of one picture. */
interface Scale {
  from_ms: number;
  to_ms: number;
  now_ms: number;
  /** Device pixels per millisecond. */
  perMs: number;
  /** How far patterns have moved: 0..TILE. */
  phase: number;
}

/** The number of the device pixel at the left edge: the picture differs once this does. */
export function originOf(view: Viewport, width: number, ratio: number): number {
  return Math.round((view.end_ms - view.span_ms) * ((width * ratio) / view.span_ms));
}

export function draw(scene: Scene): void {
  const { pen, width, height, ratio, rows, scrolled, view, paint } = scene;
  const perMs = (width * ratio) / view.span_ms;
  const origin = originOf(view, width, ratio);
  const from_ms = origin / perMs;
  const tile = Math.round(TILE * ratio);
  const scale: Scale = {
    from_ms,
    to_ms: Math.min(from_ms + view.span_ms, scene.now_ms),
    now_ms: scene.now_ms,
    perMs,
    phase: ((origin % tile) + tile) % tile,
  };
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.fillStyle = paint.surface;
  pen.fillRect(0, 0, width * ratio, height * ratio);
  grid(scene, scale);
  const [first, last] = rowsBetween(rows.rows, scrolled, scrolled + height - AXIS_HEIGHT);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS_HEIGHT * ratio, width * ratio, height * ratio);
  pen.clip();
  for (let place = first; place < last; place += 1) {
    row(scene, scale, rows.rows[place] as Row<Group>);
  }
  pen.restore();
  present(scene, scale);
}

function grid({ pen, width, height, ratio, view, paint }: Scene, scale: Scale): void {
  const step = axisStep(view.span_ms, width, 88);
  // Marks stand at whole seconds of the wall, which the balancer's clock is not.
  const wall = wallTime(0).getTime();
  const first = Math.ceil((scale.from_ms + wall) / step) * step - wall;
  pen.font = `${11 * ratio}px ${paint.font}`;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  for (let ms = first; ms < scale.from_ms + view.span_ms; ms += step) {
    const x = Math.round((ms - scale.from_ms) * scale.perMs);
    pen.fillStyle = paint.line;
    pen.fillRect(x, 0, Math.max(1, Math.round(ratio)), height * ratio);
    pen.fillStyle = paint.muted;
    const text = formatTime(wallTime(ms), step < 1000);
    const label = step < 1000 ? text.slice(0, -2) : text;
    if (x + (6 + label.length * CHARACTER) * ratio < width * ratio) {
      pen.fillText(label, x + 6 * ratio, (AXIS_HEIGHT / 2) * ratio);
    }
  }
  pen.fillStyle = paint.line;
  pen.fillRect(0, AXIS_HEIGHT * ratio - 1, width * ratio, 1);
}

function row(scene: Scene, scale: Scale, each: Row<Group>): void {
  const { pen, width, ratio, paint, cursor } = scene;
  const top = Math.round((AXIS_HEIGHT + each.top - scene.scrolled) * ratio);
  pen.setTransform(1, 0, 0, 1, 0, top);
  if (cursor !== null && cursor.group === each.source && cursor.lane === each.lane) {
    pen.fillStyle = paint.accent;
    pen.globalAlpha = 0.1;
    pen.fillRect(0, 0, width * ratio, each.height * ratio);
    pen.globalAlpha = 1;
  }
  if (each.lane !== null) {
    lane(scene, scale, each.source, each.source.lane(each.lane));
  } else if (each.collapsed) {
    density(scene, scale, each);
  } else {
    head(scene, scale, each.source);
  }
  pen.setTransform(1, 0, 0, 1, 0, 0);
}

/** The line above the lanes of an agent: what it does besides serving, in words. */
function head({ pen, ratio, paint }: Scene, scale: Scale, group: Group): void {
  for (const span of group.states) {
    const box = boxOf(span, scale);
    if (box !== null) {
      const [left, right] = box;
      pen.fillStyle = paint.colors[span.state];
      pen.fillRect(left, Math.round(24 * ratio), right - left, Math.round(2 * ratio));
      words(pen, span.text, left + 2 * ratio, right, 14 * ratio, ratio, paint.muted, paint);
    }
  }
}

function density(scene: Scene, scale: Scale, { source: group, height }: Row<Group>): void {
  const { pen, ratio, paint, strips, view } = scene;
  let strip = strips.get(group);
  if (strip === undefined) {
    strip = new Strip();
    strips.set(group, strip);
  }
  const isQueue = group.id === "";
  const most = isQueue
    ? roundScale(peak(group.density, scale.from_ms, scale.from_ms + view.span_ms, 4))
    : Math.max(1, group.slots);
  const top = Math.round(3 * ratio);
  const size = Math.round((height - 6) * ratio);
  rail(scene, scale, group, top, size);
  strip.update(group.density, most, paint, isQueue);
  strip.draw(pen, group.density, scale.from_ms, scale.to_ms, scale.perMs, top, size);
  states(scene, scale, group, top, size);
}

function lane(scene: Scene, scale: Scale, group: Group, tracks: Lane | null): void {
  const { pen, ratio, paint } = scene;
  const top = Math.round(2 * ratio);
  const size = Math.round(BLOCK_HEIGHT * ratio);
  rail(scene, scale, group, top, size);
  states(scene, scale, group, top, size);
  if (tracks === null) {
    return;
  }
  const { a, b, c, d, e, f } = pen.getTransform();
  pen.setTransform(a, b, c, d, e - scale.phase, f);
  const blocks = blocksOf(tracks, scale.from_ms, scale.to_ms, scale.now_ms, scale.perMs);
  const radius = 3 * ratio;
  blocks.forEach((block, place) => {
    const begins = blocks[place - 1]?.track !== block.track || blocks[place - 1]?.right !== block.left;
    const ends = blocks[place + 1]?.track !== block.track || blocks[place + 1]?.left !== block.right;
    const left = block.left + scale.phase;
    let wide = block.right - block.left;
    if (ends && wide > 3 && block.track?.end_ms !== null) {
      wide -= Math.max(1, Math.round(ratio)); // a gap before the next request
    }
    pen.fillStyle = paint.fills[block.kind];
    if (wide < 2 * radius || !(begins || ends)) {
      pen.fillRect(left, top, wide, size);
    } else {
      const at = (is: boolean): number => (is ? radius : 0);
      pen.beginPath();
      pen.roundRect(left, top, wide, size, [at(begins), at(ends), at(ends), at(begins)]);
      pen.fill();
    }
    if (block.kind === "decode" && block.track !== null && wide > 44 * ratio) {
      const { view } = block.track;
      const text = view === null ? `#${block.track.request}` : view.client || view.deployment;
      words(pen, text, left + 3 * ratio, left + wide, top + size / 2, ratio, paint.onBlock, paint);
    }
  });
  const marked = [scene.hovered, scene.cursor?.track];
  for (const track of marked) {
    if (track?.lane === tracks) {
      outline(pen, blocks.filter((block) => block.track === track), scale.phase, top, size, ratio, paint);
    }
  }
}

/** The ground of a row, from when the agent joined. */
function rail({ pen, width, ratio, paint }: Scene, scale: Scale, group: Group, top: number, size: number): void {
  const left = group.since_ms === null ? 0 : Math.max(0, Math.round((group.since_ms - scale.from_ms) * scale.perMs));
  pen.fillStyle = paint.sunken;
  pen.fillRect(left, top, Math.max(0, width * ratio - left), size);
}

function states({ pen, paint, ratio }: Scene, scale: Scale, group: Group, top: number, size: number): void {
  for (const span of group.states) {
    const box = boxOf(span, scale);
    if (box !== null) {
      const [left, right] = box;
      pen.fillStyle = paint.fills[span.state];
      pen.globalAlpha = span.state === "swap" ? 0.75 : 0.55;
      pen.translate(-scale.phase, 0);
      pen.fillRect(left + scale.phase, top, Math.max(right - left, ratio), size);
      pen.translate(scale.phase, 0);
      pen.globalAlpha = 1;
    }
  }
}

function boxOf(span: StateSpan, { from_ms, to_ms, perMs }: Scale): [left: number, right: number] | null {
  const end = Math.min(span.end_ms ?? to_ms, to_ms);
  if (end <= from_ms || span.start_ms >= to_ms) {
    return null;
  }
  return [Math.round((Math.max(span.start_ms, from_ms) - from_ms) * perMs), Math.round((end - from_ms) * perMs)];
}

/** As much of a text as there is room for, nothing if that is less than four characters. */
function words(
  pen: CanvasRenderingContext2D,
  text: string,
  left: number,
  right: number,
  middle: number,
  ratio: number,
  color: string,
  paint: Paint,
): void {
  const room = Math.floor((right - left - 6 * ratio) / (CHARACTER * ratio));
  if (room < Math.min(4, text.length)) {
    return;
  }
  pen.font = `500 ${11 * ratio}px ${paint.font}`;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillStyle = color;
  pen.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, left + 3 * ratio, middle + 0.5 * ratio);
}

function outline(
  pen: CanvasRenderingContext2D,
  blocks: readonly Block[],
  phase: number,
  top: number,
  size: number,
  ratio: number,
  paint: Paint,
): void {
  const first = blocks[0];
  const last = blocks.at(-1);
  if (first !== undefined && last !== undefined) {
    pen.strokeStyle = paint.text;
    pen.lineWidth = 1.5 * ratio;
    pen.beginPath();
    pen.roundRect(first.left + phase - ratio, top - ratio, last.right - first.left + ratio, size + 2 * ratio, 4 * ratio);
    pen.stroke();
  }
}

/** The line of now, and the future beside it. */
function present({ pen, width, height, ratio, paint }: Scene, scale: Scale): void {
  const x = Math.round((scale.now_ms - scale.from_ms) * scale.perMs);
  if (x >= 0 && x <= width * ratio) {
    pen.fillStyle = paint.accent;
    pen.fillRect(x, AXIS_HEIGHT * ratio - Math.round(6 * ratio), Math.max(1, Math.round(1.5 * ratio)), height * ratio);
  }
}
