/** The last hour: latencies, throughput, cache, load, as charts or as a table. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatAge, formatCount, formatDuration, formatPercent, formatRate, formatTime } from "../../core/format";
import { store, useTopics } from "../../core/store";
import { now, synchronize, wallTime } from "../../core/time";
import type { MetricsHistory } from "../../types";
import { Badge, Button, Card, Empty, Figure, Figures, Page, Problem, Segmented } from "../../ui";
import { WINDOW_BUCKETS, capacityOf } from "./capacity";
import { Chart } from "./chart";
import { MetricsTable } from "./metrics_table";
import { hitRates, largest, newest, ratesOf, seriesOf, sum, withNewest, worstOf } from "./series";

const history = signal<MetricsHistory | null>(null);
const problem = signal<unknown>(null);
const view = signal<"charts" | "table">("charts");

export default function MetricsPage() {
  useTopics("metrics");
  const [isLoading, setLoading] = useState(false);
  const load = async (): Promise<void> => {
    setLoading(true);
    try {
      const found = await api.get<MetricsHistory>("api/v2/metrics/history");
      synchronize(found);
      history.value = found;
      problem.value = null;
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      problem.value = error;
    } finally {
      setLoading(false);
    }
  };
  // after a gap the feed has only the newest row: the history fills it
  const isLive = store.connection.value.state === "live";
  useEffect(() => {
    if (isLive || history.value === null) {
      void load();
    }
  }, [isLive]);
  const row = store.metrics.value;
  useEffect(() => {
    if (row !== null && history.value !== null) {
      history.value = withNewest(history.value, row);
    }
  }, [row]);

  const known = history.value;
  return (
    <Page
      title="Metrics"
      wide
      actions={
        <>
          <span class="muted">last hour, every {formatAge(known?.bucket_ms ?? 10_000)}</span>
          <Segmented
            label="Shown as"
            value={view.value}
            options={[
              { value: "charts", label: "Charts" },
              { value: "table", label: "Table" },
            ]}
            onValue={(value) => {
              view.value = value;
            }}
          />
          <Button icon="retry" aria-label="Load the history again" busy={isLoading} onClick={() => void load()} />
        </>
      }
    >
      {problem.value === null ? null : (
        <Problem error={problem.value} title="The history cannot be loaded" retry={() => void load()} />
      )}
      {known === null ? null : isIdle(known) ? (
        <Empty
          icon="metrics"
          title="Nothing measured yet"
          advice="No request came in the last hour. The Prompt page sends one, and its figures appear here at once."
        >
          <a class="button" href="#/prompt">
            Open the Prompt page
          </a>
        </Empty>
      ) : (
        <Measured history={known} />
      )}
    </Page>
  );
}

// ------------------------------------------------------------------------------------- inside

/** Nothing was asked for in the last hour. */
function isIdle(known: MetricsHistory): boolean {
  const { requests, busy_max, waiting_max } = seriesOf(known).columns;
  return [requests, busy_max, waiting_max].every((column) => !(largest(column) ?? 0));
}

/** How long the figures look back. */
const RECENT = 6;

function Measured({ history: known }: { history: MetricsHistory }) {
  const now_ms = now();
  const series = useMemo(() => seriesOf(known), [known]);
  const { columns, start_ms, bucket_ms } = series;
  const generated = ratesOf(series, "generated_tokens", now_ms);
  const prompts = ratesOf(series, "prompt_tokens", now_ms);
  const cached = ratesOf(series, "cached_tokens", now_ms);
  const hits = useMemo(() => hitRates(series), [series]);
  const capacity = useMemo(() => capacityOf(series), [series]);
  const common = { start_ms, bucket_ms };
  const ms = (value: number) => formatDuration(value);
  const latency = (column: readonly (number | null)[]) => {
    const worst = worstOf(column, WINDOW_BUCKETS);
    const last = newest(series, column);
    const before = last === null ? "nothing was measured" : `the last one was ${formatDuration(last.value)}, at ${formatTime(wallTime(last.start_ms))}`;
    return {
      value: worst === null ? "n/a" : formatDuration(worst),
      hint: worst === null ? `Nothing in five minutes; ${before}` : `The worst of ${formatAge(bucket_ms)} each, over five minutes`,
    };
  };
  const failed = sum(columns.failed);
  const recentTokens = sum(columns.generated_tokens.slice(-RECENT));
  const recentPrompt = sum(columns.prompt_tokens.slice(-RECENT));
  const recentCached = sum(columns.cached_tokens.slice(-RECENT));
  const recent_s = (RECENT * bucket_ms) / 1000;
  return (
    <div class="stack metrics">
      <Card label="Capacity" class="capacity">
        <div class="row">
          <Badge tone={capacity.tone}>{{ ok: "room", warn: "tight", bad: "too little", quiet: "idle" }[capacity.tone]}</Badge>
          <strong>{capacity.sentence}</strong>
        </div>
        <p class="muted">{capacity.detail}</p>
      </Card>
      <Card label="Newest figures">
        <Figures>
          <Figure label="TTFT p95, worst of 5 min" wide {...latency(columns.ttft_p95_ms)} />
          <Figure label="Inter-token p95, worst of 5 min" wide {...latency(columns.itl_p95_ms)} />
          <Figure label="Queue p95, worst of 5 min" wide {...latency(columns.queue_p95_ms)} />
          <Figure label="Generated, last minute" wide value={formatRate(recentTokens / recent_s, "tok")} />
          <Figure
            label="Cache hits, last minute"
            wide
            value={recentPrompt === 0 ? "n/a" : formatPercent(recentCached / recentPrompt)}
          />
          <Figure
            label="Failed, last hour"
            wide
            value={formatCount(failed)}
            unit={`of ${formatCount(sum(columns.requests))}`}
            tone={failed > 0 ? "warn" : undefined}
          />
        </Figures>
      </Card>
      {view.value === "table" ? (
        <MetricsTable series={series} />
      ) : (
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
      )}
    </div>
  );
}
