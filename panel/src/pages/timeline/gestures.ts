/** Pointer, wheel and touch on the chart, as movements through time. */

export interface Moves {
  /** By pixels to the right: towards the past. */
  pan(pixels: number): void;
  /** Above 1 shows more time; `x` stays where it is. */
  zoom(factor: number, x: number): void;
  /** The pointer is here, null once it left. */
  hover(at: { x: number; y: number; clientX: number; clientY: number } | null): void;
  press(at: { x: number; y: number }): void;
}

/** Pixels that a press may move before it is a drag. */
const SLACK = 4;

/** Listen on `target`; the returned function ends it. `scroller` is what a vertical drag of a mouse scrolls. */
export function gesturesOn(target: HTMLElement, scroller: HTMLElement, moves: Moves): () => void {
  const down = new Map<number, PointerEvent>();
  let dragged = false;
  let pinch: number | null = null;

  const at = (event: MouseEvent): { x: number; y: number; clientX: number; clientY: number } => {
    const box = target.getBoundingClientRect();
    const { clientX, clientY } = event;
    return { x: clientX - box.left, y: clientY - box.top, clientX, clientY };
  };
  const begin = (event: PointerEvent): void => {
    if (event.button !== 0) {
      return;
    }
    dragged = down.size > 0;
    down.set(event.pointerId, event);
    pinch = down.size === 2 ? spread(down) : null;
  };
  const move = (event: PointerEvent): void => {
    const before = down.get(event.pointerId);
    if (before === undefined) {
      moves.hover(event.pointerType === "touch" ? null : at(event));
      return;
    }
    if (!dragged && Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY) < SLACK) {
      return;
    }
    if (!dragged) {
      dragged = true;
      target.setPointerCapture(event.pointerId);
      moves.hover(null);
    }
    down.set(event.pointerId, event);
    if (down.size === 2 && pinch !== null) {
      const now = spread(down);
      const middle = [...down.values()].reduce((sum, each) => sum + at(each).x, 0) / 2;
      moves.zoom(pinch / Math.max(1, now), middle);
      pinch = now;
    } else if (down.size === 1) {
      moves.pan(event.clientX - before.clientX);
      if (event.pointerType === "mouse") {
        scroller.scrollTop -= event.clientY - before.clientY;
      }
    }
  };
  const end = (event: PointerEvent): void => {
    const was = down.delete(event.pointerId);
    pinch = null;
    if (was && !dragged && event.type === "pointerup") {
      moves.press(at(event));
    }
    if (event.type === "pointerleave" || event.type === "pointercancel") {
      moves.hover(null);
    }
  };
  const leave = (event: PointerEvent): void => {
    if (!target.hasPointerCapture(event.pointerId)) {
      end(event);
    }
  };
  const wheel = (event: WheelEvent): void => {
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault(); // the browser would zoom the page
      moves.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY * lines)) * 0.005), at(event).x);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      moves.pan(-(event.deltaX || event.deltaY) * lines);
    }
  };
  target.addEventListener("pointerdown", begin);
  target.addEventListener("pointermove", move);
  target.addEventListener("pointerup", end);
  target.addEventListener("pointercancel", end);
  target.addEventListener("pointerleave", leave);
  target.addEventListener("wheel", wheel, { passive: false });
  return () => {
    target.removeEventListener("pointerdown", begin);
    target.removeEventListener("pointermove", move);
    target.removeEventListener("pointerup", end);
    target.removeEventListener("pointercancel", end);
    target.removeEventListener("pointerleave", leave);
    target.removeEventListener("wheel", wheel);
  };
}

function spread(down: ReadonlyMap<number, PointerEvent>): number {
  const [a, b] = [...down.values()];
  return a === undefined || b === undefined ? 0 : Math.abs(a.clientX - b.clientX);
}
