/** Requests on their way from one place of the picture to another: dots on curves. */

export interface Point {
  x: number;
  y: number;
}

interface Particle {
  from: Point;
  to: Point;
  begin_ms: number;
  color: string;
}

/** More would cost frames, and could not be followed by eyes. */
const MAX = 96;
const TAKES_MS = 620;

export class Particles {
  #alive: Particle[] = [];

  get isEmpty(): boolean {
    return this.#alive.length === 0;
  }

  /** `delay_ms`: those of one event follow each other. */
  add(from: Point, to: Point, color: string, now_ms: number, delay_ms = 0): void {
    if (this.#alive.length < MAX) {
      this.#alive.push({ from, to, color, begin_ms: now_ms + delay_ms });
    }
  }

  clear(): void {
    this.#alive = [];
  }

  draw(context: CanvasRenderingContext2D, now_ms: number, isNarrow: boolean): void {
    this.#alive = this.#alive.filter((each) => now_ms - each.begin_ms < TAKES_MS);
    for (const each of this.#alive) {
      const time = (now_ms - each.begin_ms) / TAKES_MS;
      if (time < 0) {
        continue;
      }
      context.fillStyle = each.color;
      // A tail of three: the dot, and where it was a moment ago.
      for (let behind = 0; behind < 3; behind += 1) {
        const at = pointOn(each.from, each.to, ease(Math.max(0, time - behind * 0.035)), isNarrow);
        context.globalAlpha = (time > 0.85 ? (1 - time) / 0.15 : 1) * (1 - behind * 0.32);
        context.beginPath();
        context.arc(at.x, at.y, 3.2 - behind * 0.7, 0, 2 * Math.PI);
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }
}

function ease(time: number): number {
  return time < 0.5 ? 2 * time * time : 1 - (2 - 2 * time) ** 2 / 2;
}

/** On the curve that leaves and arrives level (upright in a narrow picture). */
export function pointOn(from: Point, to: Point, time: number, isNarrow: boolean): Point {
  const rest = 1 - time;
  const [a, b, c, d] = [rest ** 3, 3 * rest * rest * time, 3 * rest * time * time, time ** 3];
  if (isNarrow) {
    const middle = (from.y + to.y) / 2;
    return { x: (a + b) * from.x + (c + d) * to.x, y: a * from.y + (b + c) * middle + d * to.y };
  }
  const middle = (from.x + to.x) / 2;
  return { x: a * from.x + (b + c) * middle + d * to.x, y: (a + b) * from.y + (c + d) * to.y };
}
