/** How busy an agent was, as slot-milliseconds per second and kind: what a collapsed row shows. Pure. */

export const BUCKET_MS = 1000;
/** Ten minutes. */
export const BUCKETS = 600;

export const DENSITY_KINDS = ["wait", "prefill", "decode", "stop"] as const;
export type DensityKind = (typeof DENSITY_KINDS)[number];
export type Counts = Record<DensityKind, number>;

const KINDS = DENSITY_KINDS.length;

/** A ring: bucket number `n` holds what happened in `[n, n + 1) * BUCKET_MS`. */
export class Density {
  readonly #values = new Float32Array(BUCKETS * KINDS);
  #newest = -1;
  #until_ms = 0;

  /** The number of the newest bucket, -1 for none. */
  get newest(): number {
    return this.#newest;
  }

  /** `count` slots were busy from `start_ms` to `end_ms`; what is older than the ring is dropped. */
  add(kind: DensityKind, start_ms: number, end_ms: number, count = 1): void {
    if (!(end_ms > start_ms) || count === 0) {
      return;
    }
    const last = Math.ceil(end_ms / BUCKET_MS) - 1;
    this.#until_ms = Math.max(this.#until_ms, end_ms);
    this.#advance(last);
    const first = Math.max(Math.floor(start_ms / BUCKET_MS), this.#newest - BUCKETS + 1);
    const place = DENSITY_KINDS.indexOf(kind);
    for (let bucket = first; bucket <= last; bucket += 1) {
      const from = Math.max(start_ms, bucket * BUCKET_MS);
      const to = Math.min(end_ms, (bucket + 1) * BUCKET_MS);
      const at = (bucket % BUCKETS) * KINDS + place;
      this.#values[at] = (this.#values[at] ?? 0) + (to - from) * count;
    }
  }

  /** Slots that were busy on average in that bucket, in the newest one as far as it has come. */
  slots(bucket: number, kind: DensityKind): number {
    if (bucket < 0 || bucket > this.#newest || bucket <= this.#newest - BUCKETS) {
      return 0;
    }
    const length_ms = bucket === this.#newest ? this.#until_ms - bucket * BUCKET_MS : BUCKET_MS;
    return (this.#values[(bucket % BUCKETS) * KINDS + DENSITY_KINDS.indexOf(kind)] ?? 0) / length_ms;
  }

  #advance(bucket: number): void {
    if (bucket <= this.#newest) {
      return;
    }
    if (this.#newest < 0 || bucket - this.#newest >= BUCKETS) {
      this.#values.fill(0);
    } else {
      for (let each = this.#newest + 1; each <= bucket; each += 1) {
        const at = (each % BUCKETS) * KINDS;
        this.#values.fill(0, at, at + KINDS);
      }
    }
    this.#newest = bucket;
  }
}
