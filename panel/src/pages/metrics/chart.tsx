import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { theme, themeColor } from "../../core/theme";
import { formatDate, formatTime } from "../../core/format";
import { Card } from "../../ui";
import { type Column, hasValues, lonely, markOf } from "./series";

export interface Line {
  readonly label: string;
  /** A colour token. */
  readonly color: string;
  readonly values: Column;
  readonly dashed?: boolean;
  readonly filled?: boolean;
}

const HEIGHT = 168;
/** What the axis of time shows at least. */
const LEAST_S = 600;
const DAY_S = 86_400;
/** All charts show the same moment. */
const SYNC = "metrics";

/**
 * Lines over time. Pointing at one chart shows the values of that moment in all; dragging over one zooms.
 *
 * @param format - a value as text with its unit, for the axis and the legend.
 */
export function Chart({
  title,
  lines,
  times_s,
  format,
  most,
  zoom,
}: {
  title: string;
  lines: readonly Line[];
  /** The end of each bucket, in seconds of Unix. */
  times_s: readonly number[];
  format: (value: number) => string;
  /** The upper end of the axis, where it is known. */
  most?: number;
  /** Called with the range that was dragged over, in seconds of Unix. */
  zoom: (from_s: number, to_s: number) => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shown = useRef({ lines, times_s, zoom });
  shown.current = { lines, times_s, zoom };
  const look = theme.value;
  const isEmpty = !lines.some((line) => hasValues(line.values));
  const names = lines.map((line) => line.label).join("\n");

  useEffect(() => {
    const element = place.current;
    if (element === null || isEmpty) {
      return;
    }
    const made = new uPlot(
      optionsFor(lines, element.clientWidth || 300, format, most, (from_s, to_s) => shown.current.zoom(from_s, to_s)),
      dataOf(shown.current.lines, shown.current.times_s),
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0 && element.clientWidth !== made.width) {
        made.setSize({ width: element.clientWidth, height: HEIGHT });
      }
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [look, isEmpty, names, most]);

  useEffect(() => {
    plot.current?.setData(dataOf(lines, times_s));
  }, [lines, times_s]);

  return (
    <Card title={title} class="chart">
      {isEmpty ? (
        <p class="chart-empty">n/a: nothing was measured in this time</p>
      ) : (
        <div ref={place} class="chart-place" role="figure" aria-label={`${title}: ${wordsFor(lines, format)}. The table has all values.`} />
      )}
    </Card>
  );
}

// ------------------------------------------------------------------------------------- inside

function dataOf(lines: readonly Line[], times_s: readonly number[]): uPlot.AlignedData {
  return [[...times_s], ...lines.map((line) => [...line.values])];
}

/** The newest value of each line, for screen readers. */
function wordsFor(lines: readonly Line[], format: (value: number) => string): string {
  return lines
    .map((line) => {
      const value = line.values.findLast((each) => each !== null);
      return `${line.label} ${typeof value === "number" ? format(value) : "n/a"}`;
    })
    .join(", ");
}

function optionsFor(
  lines: readonly Line[],
  width: number,
  format: (value: number) => string,
  most: number | undefined,
  zoom: (from_s: number, to_s: number) => void,
): uPlot.Options {
  const muted = themeColor("--muted");
  const grid = { stroke: themeColor("--line"), width: 1 };
  const axis = { stroke: muted, grid, ticks: { ...grid, size: 4 }, font: `11px ${fontOf()}` };
  return {
    width,
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    cursor: { sync: { key: SYNC }, points: { size: 7 }, drag: { x: true, y: false, setScale: false, dist: 6 } },
    hooks: {
      setSelect: [
        (plot) => {
          const { left, width: wide } = plot.select;
          if (wide > 0) {
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            zoom(plot.posToVal(left, "x"), plot.posToVal(left + wide, "x"));
          }
        },
      ],
    },
    legend: { live: true },
    scales: {
      x: { time: true, range: (_, low, high) => [Math.min(low, high - LEAST_S), high] },
      y: { range: (_, __, high) => [0, most ?? niceAbove(high ?? 1)] },
    },
    axes: [
      { ...axis, size: 30, space: 64, values: (_, ticks, __, ___, step_s) => ticks.map((tick) => markOf(tick, step_s)) },
      { ...axis, size: 62, space: 32, values: (_, ticks) => ticks.map(format) },
    ],
    series: [
      {
        label: "time",
        value: (plot, time) => {
          if (typeof time !== "number") {
            return "newest";
          }
          const isLong = (plot.scales.x?.max ?? 0) - (plot.scales.x?.min ?? 0) > DAY_S / 2;
          return (isLong ? formatDate : formatTime)(new Date(time * 1000));
        },
      },
      ...lines.map((line, index): uPlot.Series => {
        const stroke = themeColor(line.color);
        return {
          label: line.label,
          stroke,
          width: 1.75,
          ...(line.dashed ? { dash: [5, 4] } : {}),
          ...(line.filled ? { fill: faded(stroke) } : {}),
          points: { size: 5, fill: stroke, show: true, filter: (self, series) => lonely(self.data[series] ?? []) },
          value: (self, value) => {
            const known = typeof value === "number" ? value : newestOf(self, index + 1);
            return known === null ? "n/a" : format(known);
          },
        };
      }),
    ],
  };
}

/** What the legend shows while nothing is pointed at. */
function newestOf(plot: uPlot, index: number): number | null {
  if (typeof plot.cursor.idx === "number") {
    return null;
  }
  const values = plot.data[index];
  for (let at = (values?.length ?? 0) - 1; at >= 0; at -= 1) {
    const value = values?.[at];
    if (typeof value === "number") {
      return value;
    }
  }
  return null;
}

/** A round number above the largest value, so that the axis does not move with each bucket. */
function niceAbove(high: number): number {
  if (high <= 0) {
    return 1;
  }
  const size = 10 ** Math.floor(Math.log10(high));
  const steps = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
  const wanted = high * 1.05;
  return size * (steps.find((step) => step * size >= wanted) ?? 20);
}

function faded(color: string): string {
  const parts = color.match(/[\d.]+/g);
  return parts === null ? color : `rgba(${parts.slice(0, 3).join(",")},0.12)`;
}

function fontOf(): string {
  return getComputedStyle(document.body).fontFamily;
}
