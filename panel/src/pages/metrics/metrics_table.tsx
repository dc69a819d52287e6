import { useMemo } from "preact/hooks";
import { formatCount, formatDuration, formatPercent, formatTime } from "../../core/format";
import { wallTime } from "../../core/time";
import type { MetricsField } from "../../types";
import { type Column as TableColumn, Table } from "../../ui";
import { type Series, hitRates } from "./series";

interface Row {
  readonly start_ms: number;
  readonly values: Readonly<Partial<Record<MetricsField | "hits", number | null>>>;
}

const COLUMNS: readonly [field: MetricsField | "hits", title: string, format: (value: number) => string, hide?: "narrow" | "medium"][] = [
  ["requests", "requests", formatCount],
  ["failed", "failed", formatCount],
  ["ttft_p50_ms", "TTFT p50", formatDuration, "narrow"],
  ["ttft_p95_ms", "TTFT p95", formatDuration],
  ["itl_p50_ms", "inter-token p50", formatDuration, "medium"],
  ["itl_p95_ms", "inter-token p95", formatDuration, "narrow"],
  ["queue_p50_ms", "queue p50", formatDuration, "medium"],
  ["queue_p95_ms", "queue p95", formatDuration, "narrow"],
  ["prompt_tokens", "prompt tokens", formatCount, "medium"],
  ["hits", "cached", formatPercent, "medium"],
  ["generated_tokens", "generated", formatCount, "narrow"],
  ["waiting_max", "waiting", formatCount, "narrow"],
  ["busy_max", "busy", formatCount, "narrow"],
  ["slots", "slots", formatCount, "medium"],
];

/** The same as the charts in figures, the newest first; n/a where nothing was measured. */
export function MetricsTable({ series, timeOf }: { series: Series; timeOf?: (ms: number) => string }) {
  const rows = useMemo(() => rowsOf(series), [series]);
  const columns: TableColumn<Row>[] = [
    {
      id: "time",
      title: "from",
      value: (row) => row.start_ms,
      render: (row) => <span class="nowrap">{timeOf?.(row.start_ms) ?? formatTime(wallTime(row.start_ms))}</span>,
    },
    ...COLUMNS.map(
      ([field, title, format, hide]): TableColumn<Row> => ({
        id: field,
        title,
        align: "right",
        ...(hide === undefined ? {} : { hide }),
        value: (row) => row.values[field] ?? null,
        render: (row) => {
          const value = row.values[field];
          return typeof value === "number" ? <span class="nowrap">{format(value)}</span> : <span class="muted">n/a</span>;
        },
      }),
    ),
  ];
  return <Table label={timeOf === undefined ? "Metrics of the last hour" : "Metrics of this time"} columns={columns} rows={rows} rowKey={(row) => row.start_ms} rowHeight={36} />;
}

function rowsOf(series: Series): Row[] {
  const hits = hitRates(series);
  return series.start_ms
    .map((start_ms, index): Row => {
      const values: Partial<Record<MetricsField | "hits", number | null>> = { hits: hits[index] ?? null };
      for (const [field] of COLUMNS) {
        if (field !== "hits") {
          values[field] = series.columns[field][index] ?? null;
        }
      }
      return { start_ms, values };
    })
    .reverse();
}
