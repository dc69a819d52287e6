/** Latencies, throughput, cache and load: live over the last hour, or of any range that is kept, as charts or as a table. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatAge, formatCount, formatDuration, formatPercent, formatRate, formatTime } from "../../core/format";
import { route } from "../../core/router";
import { store, useTopics } from "../../core/store";
import { now, synchronize, wallTime } from "../../core/time";
import type { MetricsHistory } from "../../types";
import { Badge, Button, Card, Empty, Figure, Figures, Page, Problem, Segmented } from "../../ui";
import { AskCapacity } from "./ask_capacity";
import { WINDOW_BUCKETS, capacityOf } from "./capacity";
import { FleetCharts } from "./fleet_charts";
import { MetricsTable } from "./metrics_table";
import { askedIn, isLive } from "./past";
import { Choices, PastMetrics, showRange } from "./past_metrics";
import { largest, newest, seriesOf, sum, withNewest, worstOf } from "./series";

const history = signal<MetricsHistory | null>(null);
const problem = signal<unknown>(null);
const view = signal<"charts" | "table">("charts");

/** The live hour, or whatever range and kind the address asks for. */
export default function MetricsPage() {
  const asked = askedIn(route.value.query);
  return isLive(asked) ? <LiveMetrics /> : <PastMetrics asked={asked} />;
}

// ------------------------------------------------------------------------------------- inside

const LIVE = askedIn(new URLSearchParams());

function zoom(from_s: number, to_s: number): void {
  showRange(LIVE, { from: Math.floor(from_s), to: Math.ceil(to_s) });
}

function LiveMetrics() {
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
          <span class="muted">every {formatAge(known?.bucket_ms ?? 10_000)}</span>
          <Choices asked={LIVE} />
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
          advice="No request came in the last hour; longer ranges may have some. The Prompt page sends one, and its figures appear here at once."
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
  const { columns, bucket_ms } = series;
  const times_s = useMemo(
    () => series.start_ms.map((start) => wallTime(start + series.bucket_ms).getTime() / 1000),
    [series],
  );
  const capacity = useMemo(() => capacityOf(series), [series]);
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
        <FleetCharts series={series} now_ms={now_ms} times_s={times_s} zoom={zoom} />
      )}
      <AskCapacity />
    </div>
  );
}
