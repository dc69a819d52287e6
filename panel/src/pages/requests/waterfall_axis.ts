/** The marks of a waterfall's axis. Pure. */

import { formatDuration } from "../../core/format";
import { axisStep } from "../timeline/viewport";

export interface Mark {
  ms: number;
  /** Empty where it would run into the one before. */
  label: string;
  /** True if the label stands before its line: behind it there is no room. */
  isBefore: boolean;
}

/** Pixels between two lines, at least. */
const ROOM = 72;
/** Pixels of a letter of the axis, at most, and of the space beside a label. */
const LETTER = 7;
const BESIDE = 10;

/** Lines from 0 to `span_ms` on an axis of `width` pixels, with the labels that fit beside each other. */
export function axisMarks(span_ms: number, width: number): Mark[] {
  const step = axisStep(span_ms, width, ROOM);
  const marks: Mark[] = [];
  let free = 0;
  for (let ms = 0; ms <= span_ms; ms += step) {
    const words = ms === 0 ? "0" : formatDuration(ms);
    const size = words.length * LETTER + BESIDE;
    const at = (ms / span_ms) * width;
    const isBefore = at + size > width;
    const left = isBefore ? at - size : at;
    const fits = left >= free;
    if (fits) {
      free = left + size;
    }
    marks.push({ ms, label: fits ? words : "", isBefore });
  }
  return marks;
}
