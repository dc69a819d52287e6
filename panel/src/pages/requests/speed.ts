/** Small curves: the speed of an answer, the position in the queue. Pure: points are 0..1 from the left and from the top. */

export type Point = readonly [x: number, y: number];

export interface Speed {
  /** Tokens per second between two moments. */
  from_ms: number;
  to_ms: number;
  per_s: number;
}

/** The speeds between the moments of `progress`, whose counts only grow. */
export function speedsOf(progress: readonly (readonly [number, number])[]): Speed[] {
  const speeds: Speed[] = [];
  for (let place = 1; place < progress.length; place += 1) {
    const [from_ms, before] = progress[place - 1] as readonly [number, number];
    const [to_ms, after] = progress[place] as readonly [number, number];
    if (to_ms > from_ms && after >= before) {
      speeds.push({ from_ms, to_ms, per_s: ((after - before) * 1000) / (to_ms - from_ms) });
    }
  }
  return speeds;
}

/** The speeds within a stage as a line over its length; empty with fewer than two. */
export function speedLine(speeds: readonly Speed[], start_ms: number, end_ms: number): Point[] {
  const inside = speeds.filter((each) => each.to_ms > start_ms && each.from_ms < end_ms);
  const most = Math.max(...inside.map((each) => each.per_s));
  if (inside.length < 2 || !(most > 0) || end_ms <= start_ms) {
    return [];
  }
  return inside.map((each) => {
    const middle = (Math.max(each.from_ms, start_ms) + Math.min(each.to_ms, end_ms)) / 2;
    return [(middle - start_ms) / (end_ms - start_ms), 1 - each.per_s / most] as const;
  });
}

/** How many were before it, as steps over the stay; none is at the bottom. */
export function positionSteps(positions: readonly (readonly [number, number])[], start_ms: number, end_ms: number): Point[] {
  const most = Math.max(...positions.map(([, position]) => position));
  if (positions.length === 0 || end_ms <= start_ms || most < 1) {
    return [];
  }
  const points: Point[] = [];
  const x = (ms: number): number => Math.min(1, Math.max(0, (ms - start_ms) / (end_ms - start_ms)));
  positions.forEach(([ms, position], place) => {
    const y = 1 - position / most;
    const next = positions[place + 1];
    points.push([place === 0 ? 0 : x(ms), y], [next === undefined ? 1 : x(next[0]), y]);
  });
  return points;
}

/** An SVG path through points in a box. */
export function pathOf(points: readonly Point[], width: number, height: number): string {
  return points
    .map(([x, y], place) => `${place === 0 ? "M" : "L"}${(x * width).toFixed(1)} ${(y * height).toFixed(1)}`)
    .join("");
}
