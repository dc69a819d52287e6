import { useMemo } from "preact/hooks";
import { formatCount, formatDuration, formatPercent, formatRate } from "../../core/format";
import { Chart } from "./chart";
import { type Series, hitRates, ratesOf } from "./series";

/** Latencies, throughput, cache and load of the whole fleet. */
export function FleetCharts({
  series,
  now_ms,
  times_s,
  zoom,
}: {
  series: Series;
  /** On the clock of the series. */
  now_ms: number;
  times_s: readonly number[];
  zoom: (from_s: number, to_s: number) => void;
}) {
  const { columns } = series;
  const generated = ratesOf(series, "generated_tokens", now_ms);
  const prompts = ratesOf(series, "prompt_tokens", now_ms);
  const cached = ratesOf(series, "cached_tokens", now_ms);
  const hits = useMemo(() => hitRates(series), [series]);
  const common = { times_s, zoom };
  const ms = (value: number) => formatDuration(value);
  return (
      <div class="charts">
      <Chart
        {...common}
        title="Time to first token"
        format={ms}
        lines={[
          { label: "p50", color: "--c-decode", values: columns.ttft_p50_ms },
          { label: "p95", color: "--c-prefill", values: columns.ttft_p95_ms },
        ]}
      />
      <Chart
        {...common}
        title="Between tokens"
        format={ms}
        lines={[
          { label: "p50", color: "--c-decode", values: columns.itl_p50_ms },
          { label: "p95", color: "--c-prefill", values: columns.itl_p95_ms },
        ]}
      />
      <Chart
        {...common}
        title="Time in the queue"
        format={ms}
        lines={[
          { label: "p50", color: "--c-decode", values: columns.queue_p50_ms },
          { label: "p95", color: "--c-prefill", values: columns.queue_p95_ms },
        ]}
      />
      <Chart
        {...common}
        title="Tokens per second"
        format={(value) => formatRate(value)}
        lines={[
          { label: "generated", color: "--c-decode", values: generated, filled: true },
          { label: "prompt", color: "--c-prefill", values: prompts },
          { label: "of it cached", color: "--c-queue", values: cached, dashed: true },
        ]}
      />
      <Chart
        {...common}
        title="Prompt tokens from the cache"
        format={formatPercent}
        most={1}
        lines={[{ label: "hit rate", color: "--c-decode", values: hits, filled: true }]}
      />
      <Chart
        {...common}
        title="Slots and queue, most at a time"
        format={(value) => (Number.isInteger(value) ? formatCount(value) : "")}
        lines={[
          { label: "busy", color: "--c-decode", values: columns.busy_max, filled: true },
          { label: "slots", color: "--c-stop", values: columns.slots, dashed: true },
          { label: "waiting", color: "--c-queue", values: columns.waiting_max },
        ]}
      />
      <Chart
        {...common}
        title="Requests that ended"
        format={(value) => (Number.isInteger(value) ? formatCount(value) : "")}
        lines={[
          { label: "all", color: "--c-decode", values: columns.requests, filled: true },
          { label: "failed", color: "--c-dead", values: columns.failed },
        ]}
      />
    </div>
  );
}
