import { effect } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { theme } from "../../core/theme";
import { Icon } from "../../ui";
import type { ChartState } from "./chart_state";
import { commandOf, KEY_HELP } from "./commands";
import { placeOf } from "./cursor";
import { AXIS_HEIGHT, draw, originOf } from "./draw";
import { gesturesOn } from "./gestures";
import type { Group } from "./group";
import { type Paint, paintFor } from "./paint";
import { type Row, rowsBetween } from "./rows";
import type { Strip } from "./strip";
import { Tip } from "./tip";
import { announced } from "./words";

/** Rows that are drawn beside those in sight. */
const AHEAD = 200;
const STILL_MS = 1000;

/** The canvas, the names of its rows, and what pointers and keys do on it. */
export function Chart({ state }: { state: ChartState }) {
  const scroller = useRef<HTMLDivElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [scrolled, setScrolled] = useState(0);
  const [height, setHeight] = useState(400);
  const rows = state.rows.value;
  useEffect(() => {
    const box = scroller.current;
    const target = plot.current;
    const picture = canvas.current;
    if (box === null || target === null || picture === null) {
      return;
    }
    const drawing = drawOn(picture, target, box, state, setHeight);
    const gestures = gesturesOn(target, box, {
      pan: (pixels) => state.pan(pixels),
      zoom: (factor, x) => state.zoom(factor, x / state.width),
      hover: (at) => {
        const found = at === null || at.y < AXIS_HEIGHT ? null : state.pointAt(at.x, at.y - AXIS_HEIGHT + box.scrollTop);
        state.hovered.value = found === null || at === null ? null : { ...found, clientX: at.clientX, clientY: at.clientY };
      },
      press: ({ x, y }) => {
        if (y >= AXIS_HEIGHT) {
          state.press(x, y - AXIS_HEIGHT + box.scrollTop);
        }
      },
    });
    return () => {
      drawing();
      gestures();
    };
  }, [state]);
  const cursor = state.cursor.value;
  useEffect(() => {
    const row = cursor === null ? undefined : rows.rows[placeOf(cursor, rows.rows)];
    const box = scroller.current;
    if (row !== undefined && box !== null) {
      const room = box.clientHeight - AXIS_HEIGHT;
      if (row.top < box.scrollTop) {
        box.scrollTop = row.top;
      } else if (row.top + row.height > box.scrollTop + room) {
        box.scrollTop = row.top + row.height - room;
      }
    }
  }, [cursor, rows]);
  const [first, last] = rowsBetween(rows.rows, scrolled - AHEAD, scrolled + height + AHEAD);
  return (
    <div
      class="timeline-chart"
      role="application"
      aria-label="Timeline of the slots"
      aria-roledescription="timeline"
      aria-describedby="timeline-keys"
      tabIndex={0}
      onKeyDown={(event) => {
        const command = event.target === event.currentTarget ? commandOf(event) : null;
        if (command !== null && state.run(command)) {
          event.preventDefault();
        }
      }}
    >
      <p id="timeline-keys" class="unseen">
        {KEY_HELP.map(([keys, effect]) => `${keys}: ${effect}.`).join(" ")}
      </p>
      <p class="unseen" aria-live="polite">
        {cursor === null ? "" : announced(cursor, state.now_ms)}
      </p>
      <div
        class="timeline-scroller"
        ref={scroller}
        style={{ height: `${rows.height + AXIS_HEIGHT + 1}px` }}
        onScroll={(event) => setScrolled(event.currentTarget.scrollTop)}
      >
        <div class="timeline-plot" ref={plot} style={{ height: `${height}px`, marginBottom: `${-height}px` }}>
          <canvas ref={canvas} aria-hidden="true" />
        </div>
        <div class="timeline-corner" />
        <div class="timeline-rows" style={{ height: `${rows.height}px` }}>
          {rows.rows.slice(first, last).map((row) =>
            row.lane === null ? (
              <Head key={row.source.id} row={row} state={state} />
            ) : (
              <span class="timeline-lane" key={`${row.source.id}/${row.lane}`} style={{ top: `${row.top}px` }}>
                {row.source.id === "" ? row.lane + 1 : row.lane}
              </span>
            ),
          )}
        </div>
      </div>
      <Tip state={state} />
    </div>
  );
}

/** The name of an agent; pressing it shows or hides its slots. */
function Head({ row, state }: { row: Row<Group>; state: ChartState }) {
  state.changes.value; // counts
  const group = row.source;
  const isQueue = group.id === "";
  const isGone = !isQueue && group.agent === null;
  const phase = group.agent?.phase ?? "no slots";
  const count = isQueue ? `${group.busy}` : isGone ? "gone" : group.slots === 0 ? phase : `${group.busy}/${group.slots}`;
  const words = isQueue
    ? `${group.busy} waiting`
    : isGone
      ? "gone"
      : group.slots === 0
        ? `${phase}, no slots`
        : `${group.busy} of ${group.slots} slots busy`;
  return (
    <button
      type="button"
      class={["timeline-head", isGone && "gone"].filter(Boolean).join(" ")}
      style={{ top: `${row.top}px` }}
      aria-expanded={!row.collapsed}
      aria-label={`${group.label}, ${words}`}
      title={`${group.label}: ${words}`}
      onClick={() => state.toggle(group)}
    >
      <Icon name={row.collapsed ? "chevron" : "down"} size={12} />
      <span class="truncate">{group.label}</span>
      <span class="timeline-count">{count}</span>
    </button>
  );
}

/** Draw whenever there is something new to see, at most once per frame of the screen. */
function drawOn(
  picture: HTMLCanvasElement,
  plot: HTMLElement,
  scroller: HTMLElement,
  state: ChartState,
  setHeight: (height: number) => void,
): () => void {
  const pen = picture.getContext("2d", { alpha: false });
  if (pen === null) {
    return () => undefined;
  }
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const strips = new WeakMap<Group, Strip>();
  let paint: Paint | null = null;
  let seen = "";
  let dirty = true;
  let last_ms = 0;
  let handle = 0;
  const size = (): void => {
    const ratio = window.devicePixelRatio || 1;
    const height = scroller.clientHeight;
    const width = plot.clientWidth;
    state.width = Math.max(1, width);
    setHeight(height);
    picture.width = Math.round(width * ratio);
    picture.height = Math.round(height * ratio);
    picture.style.width = `${width}px`;
    picture.style.height = `${height}px`;
    paint = null;
    dirty = true;
  };
  const frame = (at_ms: number): void => {
    handle = requestAnimationFrame(frame);
    if (!calm.matches || at_ms - last_ms >= STILL_MS) {
      state.advance();
      last_ms = at_ms;
    }
    const ratio = window.devicePixelRatio || 1;
    const view = state.view.peek();
    const now = `${originOf(view, state.width, ratio)} ${view.span_ms} ${scroller.scrollTop} ${ratio}`;
    if (!dirty && now === seen) {
      return;
    }
    dirty = false;
    seen = now;
    paint ??= paintFor(ratio);
    draw({
      pen,
      width: state.width,
      height: scroller.clientHeight,
      ratio,
      rows: state.rows.peek(),
      scrolled: scroller.scrollTop,
      view,
      now_ms: state.now_ms,
      paint,
      cursor: state.cursor.peek(),
      hovered: state.hovered.peek()?.track ?? null,
      strips,
    });
  };
  const observer = new ResizeObserver(size);
  observer.observe(scroller);
  observer.observe(plot);
  const stop = effect(() => {
    state.changes.value;
    state.rows.value;
    state.cursor.value;
    state.hovered.value;
    dirty = true;
  });
  const recolor = effect(() => {
    theme.value;
    paint = null;
    dirty = true;
  });
  size();
  handle = requestAnimationFrame(frame);
  return () => {
    cancelAnimationFrame(handle);
    observer.disconnect();
    stop();
    recolor();
  };
}
