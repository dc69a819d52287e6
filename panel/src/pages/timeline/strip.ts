/** The density of a collapsed row as an image, a pixel per bucket: drawn once, then only moved. */

import { BUCKETS, BUCKET_MS, type Density, DENSITY_KINDS, type DensityKind } from "./density";
import type { Paint } from "./paint";

export const STRIP_HEIGHT = 20;

/** From the bottom up. */
const COLORS: Record<DensityKind, "engine" | "prefill" | "decode" | "stop"> = {
  decode: "decode",
  prefill: "prefill",
  wait: "engine",
  stop: "stop",
};
const ORDER: readonly DensityKind[] = ["decode", "prefill", "wait", "stop"];

export class Strip {
  readonly #canvas = document.createElement("canvas");
  readonly #pen: CanvasRenderingContext2D | null;
  #drawn = -1;
  #looks = "";
  #most = 0;

  constructor() {
    this.#canvas.width = BUCKETS;
    this.#canvas.height = STRIP_HEIGHT * 2;
    this.#pen = this.#canvas.getContext("2d");
  }

  /** Draw what is new, and the newest bucket, which grows. `most`: the slots of a full row. */
  update(density: Density, most: number, paint: Paint, isQueue: boolean): void {
    const looks = `${paint.surface} ${most}`;
    if (looks !== this.#looks || most !== this.#most) {
      this.#looks = looks;
      this.#most = most;
      this.#drawn = -1;
    }
    const first = Math.max(this.#drawn, density.newest - BUCKETS + 1);
    for (let bucket = first; bucket <= density.newest; bucket += 1) {
      this.#column(density, bucket, paint, isQueue);
    }
    this.#drawn = density.newest;
  }

  /** Draw a time, `scale` pixels per millisecond, into a box. */
  draw(
    onto: CanvasRenderingContext2D,
    density: Density,
    from_ms: number,
    to_ms: number,
    scale: number,
    top: number,
    height: number,
  ): void {
    const first = Math.max(Math.floor(from_ms / BUCKET_MS), density.newest - BUCKETS + 1, 0);
    const last = Math.min(Math.ceil(to_ms / BUCKET_MS) - 1, density.newest);
    onto.imageSmoothingEnabled = false;
    onto.save();
    onto.beginPath();
    onto.rect(0, top, (to_ms - from_ms) * scale, height); // the newest bucket is not over yet
    onto.clip();
    for (let bucket = first; bucket <= last; ) {
      const column = bucket % BUCKETS;
      const count = Math.min(last - bucket + 1, BUCKETS - column); // up to where the ring begins again
      const left = (bucket * BUCKET_MS - from_ms) * scale;
      onto.drawImage(this.#canvas, column, 0, count, STRIP_HEIGHT * 2, left, top, count * BUCKET_MS * scale, height);
      bucket += count;
    }
    onto.restore();
  }

  #column(density: Density, bucket: number, paint: Paint, isQueue: boolean): void {
    const pen = this.#pen;
    if (pen === null || bucket < 0) {
      return;
    }
    const x = bucket % BUCKETS;
    const whole = STRIP_HEIGHT * 2;
    pen.clearRect(x, 0, 1, whole);
    let bottom = whole;
    for (const kind of ORDER) {
      const size = Math.min(bottom, (density.slots(bucket, kind) / Math.max(1, this.#most)) * whole);
      if (size > 0) {
        pen.fillStyle = isQueue ? paint.colors.queued : paint.colors[COLORS[kind]];
        pen.fillRect(x, bottom - size, 1, size);
        bottom -= size;
      }
    }
  }
}

/** The most slots that were busy in the buckets in sight, at least `least`: what a full row of the queue stands for. */
export function peak(density: Density, from_ms: number, to_ms: number, least: number): number {
  let most = least;
  const last = Math.min(Math.ceil(to_ms / BUCKET_MS), density.newest);
  for (let bucket = Math.max(0, Math.floor(from_ms / BUCKET_MS), last - BUCKETS); bucket <= last; bucket += 1) {
    most = Math.max(most, DENSITY_KINDS.reduce((sum, kind) => sum + density.slots(bucket, kind), 0));
  }
  return most;
}

/** Rounded up to 1, 2 or 5 times a power of ten, so that the scale of a row seldom changes. */
export function roundScale(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value) ?? 10 * power;
}
