import { useEffect, useState } from "preact/hooks";
import { now } from "../../core/time";
import type { RequestView } from "../../types";
import { pathOf } from "./speed";
import { axisMarks } from "./waterfall_axis";
import { type WaterfallRow, waterfallRows } from "./waterfall_rows";

const CURVE_WIDTH = 400;
const CURVE_HEIGHT = 20;
const TICK_MS = 250;
/** How wide the bars are, at least: it decides which marks the axis has. */
const barsWidth = (): number =>
  Math.min(720, Math.max(160, window.innerWidth - (window.innerWidth <= 640 ? 160 : 620)));

/** The scale: to where, from the arrival. */
export type Reach = "whole" | "first";

/** What happened to one request, one below the other; the bars of what goes on grow. */
export function Waterfall({ view, reach }: { view: RequestView; reach: Reach }) {
  const now_ms = useNow(view.ended_ms);
  const rows = waterfallRows(view, now_ms);
  const begin = view.arrived_ms;
  const first = view.first_result_ms;
  const end = reach === "first" && first !== null ? first + Math.max(20, (first - begin) * 0.06) : (view.ended_ms ?? now_ms);
  const span = Math.max(1, end - begin);
  const marks = axisMarks(span, barsWidth());
  return (
    <div class="waterfall" role="table" aria-label="What happened to the request">
      <div class="waterfall-grid" aria-hidden="true">
        {marks.map(({ ms }) => (
          <i key={ms} style={{ left: `${(ms / span) * 100}%` }} />
        ))}
      </div>
      <div class="waterfall-axis" role="row">
        <span role="columnheader">Stage</span>
        <span class="waterfall-scale" role="columnheader" aria-label="When">
          {marks.map(({ ms, label, isBefore }) =>
            label === "" ? null : (
              <span key={ms} class={isBefore ? "last" : undefined} style={{ left: `${(ms / span) * 100}%` }}>
                {label}
              </span>
            ),
          )}
        </span>
        <span class="right" role="columnheader">
          Took
        </span>
      </div>
      {rows.map((row) => (
        <div key={row.id} class={`waterfall-row depth-${row.depth}`} role="row">
          <span class="waterfall-label" role="rowheader">
            {row.label}
          </span>
          <span class="waterfall-bar" role="cell" aria-hidden="true">
            <Bar row={row} begin={begin} end={end} now_ms={now_ms} />
          </span>
          <span class="waterfall-value" role="cell">
            {row.value}
          </span>
          {row.note === "" ? null : (
            <span class="waterfall-note" role="cell">
              {row.note}
            </span>
          )}
        </div>
      ))}
    </div>
  );
}

function Bar({ row, begin, end, now_ms }: { row: WaterfallRow; begin: number; end: number; now_ms: number }) {
  const place = (ms: number): number => Math.min(100, Math.max(0, ((ms - begin) / (end - begin)) * 100));
  const left = place(row.start_ms);
  if (row.kind === "moment" || row.kind === "placed" || row.kind === "lost") {
    return row.start_ms > end ? null : <b class={`mark ${row.kind}`} style={{ left: `${left}%` }} />;
  }
  const width = place(row.end_ms ?? now_ms) - left;
  if (row.start_ms >= end) {
    return null;
  }
  return (
    <span
      class={["span", row.kind, row.end_ms === null && "open"].filter(Boolean).join(" ")}
      style={{ left: `${left}%`, width: `max(2px, ${width}%)` }}
    >
      {row.cached > 0 ? <em style={{ width: `${row.cached * 100}%` }} /> : null}
      {row.curve.length > 1 ? (
        <svg viewBox={`0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`} preserveAspectRatio="none">
          <path d={pathOf(row.curve, CURVE_WIDTH, CURVE_HEIGHT)} vector-effect="non-scaling-stroke" />
        </svg>
      ) : null}
    </span>
  );
}

/** The balancer's time, a few times a second until the end. */
function useNow(ended_ms: number | null): number {
  const [now_ms, setNow] = useState(now);
  useEffect(() => {
    if (ended_ms === null) {
      const timer = setInterval(() => setNow(now()), TICK_MS);
      return () => clearInterval(timer);
    }
    return undefined;
  }, [ended_ms]);
  return ended_ms ?? now_ms;
}
