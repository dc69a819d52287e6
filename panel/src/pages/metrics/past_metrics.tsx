/** A range of the past, of the whole fleet or with a line for each deployment, agent, client or key. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatAge, formatCount, formatDate, formatDuration, formatRate } from "../../core/format";
import { hrefOf, navigate } from "../../core/router";
import type { MetricsField, MetricsRange } from "../../types";
import { Button, Empty, Note, Page, Problem, Segmented, Select } from "../../ui";
import { Chart, type Line } from "./chart";
import { FleetCharts } from "./fleet_charts";
import { MetricsTable } from "./metrics_table";
import { type Asked, KINDS, RANGES, moved, queryOf, seriesIn } from "./past";
import { type Series, ratesOf } from "./series";

const view = signal<"charts" | "table">("charts");
const RELOAD_MS = 15_000;
const COLORS = ["--c-decode", "--c-prefill", "--c-queue", "--c-dead", "--c-prepare", "--c-engine", "--c-swap", "--ok"];
const COLOR_OF_OTHER = "--c-stop";

/** Go to another range, and stay at what is shown of it. */
export function showRange(asked: Asked, range: { last: string } | { from: number; to: number }): void {
  const next = "last" in range ? { last: range.last, from: null, to: null } : { last: "", ...range };
  navigate(hrefOf("metrics", [], queryOf({ ...asked, ...next })));
}

/** Which range, and of what. */
export function Choices({ asked }: { asked: Asked }) {
  const isChosen = asked.from !== null;
  const range = isChosen ? "chosen" : asked.last;
  const options = isChosen ? [...RANGES, { value: "chosen", label: "Chosen" }] : RANGES;
  return (
    <>
      <Select
        aria-label="Range"
        value={range}
        options={options}
        onValue={(last) => {
          if (last !== "chosen") {
            showRange(last === "" ? { ...asked, by: "fleet" } : asked, { last });
          }
        }}
      />
      <Select
        aria-label="Lines"
        value={asked.by}
        options={KINDS}
        onValue={(by) => {
          const kind = KINDS.find((each) => each.value === by)?.value ?? "fleet";
          const last = kind !== "fleet" && range === "" ? "1h" : asked.last;
          navigate(hrefOf("metrics", [], queryOf({ ...asked, by: kind, last })));
        }}
      />
    </>
  );
}

export function PastMetrics({ asked }: { asked: Asked }) {
  const { range, problem, isLoading, load } = useRange(asked);
  const now_s = Date.now() / 1000;
  const move = (by: { steps?: number; times?: number }): void => {
    if (range !== null) {
      showRange(asked, moved(range, by, now_s));
    }
  };
  return (
    <Page
      title="Metrics"
      wide
      actions={
        <>
          <Choices asked={asked} />
          <Button icon="plus" aria-label="Zoom in" title="Zoom in; or drag over a chart" onClick={() => move({ times: 0.5 })} />
          <Button aria-label="Zoom out" title="Zoom out" onClick={() => move({ times: 2 })}>
            −
          </Button>
          <Button aria-label="Earlier" title="Earlier" onClick={() => move({ steps: -0.5 })}>
            ←
          </Button>
          <Button aria-label="Later" title="Later" onClick={() => move({ steps: 0.5 })}>
            →
          </Button>
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
          <Button icon="retry" aria-label="Load the history again" busy={isLoading} onClick={load} />
        </>
      }
    >
      {problem === null ? null : <Problem error={problem} title="The history cannot be loaded" retry={load} />}
      {range === null ? null : (
        <div class="stack metrics">
          <p class="muted" role="status">
            {formatDate(new Date(range.begin * 1000))} to {formatDate(new Date(Math.min(range.end, now_s) * 1000))}, every{" "}
            {formatAge(range.step_s * 1000)}
          </p>
          {range.problem === "" ? null : <Note tone="warn">{range.problem}</Note>}
          <Shown range={range} asked={asked} />
        </div>
      )}
    </Page>
  );
}

// ------------------------------------------------------------------------------------- inside

/** Loads a range, and again now and then where it ends with the present. */
function useRange(asked: Asked) {
  const [found, setFound] = useState<{ path: string; range: MetricsRange } | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [isLoading, setLoading] = useState(false);
  const [times, setTimes] = useState(0);
  const path = `api/v2/metrics/range?${new URLSearchParams(
    Object.entries(queryOf(asked)).flatMap(([name, value]) => (value === null ? [] : [[name, String(value)]])),
  )}`;
  useEffect(() => {
    let isCurrent = true;
    const load = async (): Promise<void> => {
      setLoading(true);
      try {
        const range = await api.get<MetricsRange>(path);
        if (isCurrent) {
          setFound({ path, range });
          setProblem(null);
        }
      } catch (error) {
        if (!(error instanceof ApiError)) {
          throw error;
        }
        if (isCurrent) {
          setProblem(error);
        }
      } finally {
        if (isCurrent) {
          setLoading(false);
        }
      }
    };
    void load();
    const timer = asked.from === null ? setInterval(() => document.hidden || void load(), RELOAD_MS) : undefined;
    return () => {
      isCurrent = false;
      clearInterval(timer);
    };
  }, [path, times]);
  const range = found !== null && found.path === path ? found.range : null;
  return { range, problem, isLoading, load: () => setTimes((before) => before + 1) };
}

function Shown({ range, asked }: { range: MetricsRange; asked: Asked }) {
  const all = useMemo(
    () => range.series.map((each) => ({ ...each, series: seriesIn(range, each.rows) })),
    [range],
  );
  const times_s = useMemo(
    () => all[0]?.series.start_ms.map((start) => (start + range.step_s * 1000) / 1000) ?? [],
    [all],
  );
  const zoom = (from_s: number, to_s: number): void => {
    const middle = (from_s + to_s) / 2;
    const half = Math.max(30, (to_s - from_s) / 2);
    showRange(asked, { from: Math.floor(middle - half), to: Math.ceil(middle + half) });
  };
  const first = all[0];
  if (first === undefined) {
    return <Empty icon="metrics" title="Nothing measured" advice="Nothing is kept of this time. History is kept for 400 days at most." />;
  }
  if (range.by === "fleet") {
    return view.value === "table" ? (
      <MetricsTable series={first.series} timeOf={(ms) => formatDate(new Date(ms))} />
    ) : (
      <FleetCharts series={first.series} now_ms={Date.now()} times_s={times_s} zoom={zoom} />
    );
  }
  if (view.value === "table") {
    return (
      <div class="stack">
        {all.map((each) => (
          <section key={each.name} aria-label={each.name} class="stack">
            <h2 class="mono">{each.name}</h2>
            <MetricsTable series={each.series} timeOf={(ms) => formatDate(new Date(ms))} />
          </section>
        ))}
      </div>
    );
  }
  return <NamedCharts all={all} times_s={times_s} zoom={zoom} />;
}

interface Named {
  readonly name: string;
  readonly is_other: boolean;
  readonly series: Series;
}

function NamedCharts({
  all,
  times_s,
  zoom,
}: {
  all: readonly Named[];
  times_s: readonly number[];
  zoom: (from_s: number, to_s: number) => void;
}) {
  const lines = (values: (series: Series) => Line["values"], named = all): Line[] =>
    named.map((each, index) => ({
      label: each.name,
      color: each.is_other ? COLOR_OF_OTHER : (COLORS[index % COLORS.length] ?? COLOR_OF_OTHER),
      values: values(each.series),
      dashed: each.is_other,
    }));
  const now_ms = Date.now();
  const whole = (value: number) => (Number.isInteger(value) ? formatCount(value) : "");
  // of the rest no latencies are known
  const known = all.filter((each) => !each.is_other);
  const field = (name: MetricsField) => (series: Series) => series.columns[name];
  const common = { times_s, zoom };
  return (
    <div class="charts">
      <Chart {...common} title="Generated tokens per second" format={(value) => formatRate(value)} lines={lines((series) => ratesOf(series, "generated_tokens", now_ms))} />
      <Chart {...common} title="Prompt tokens per second" format={(value) => formatRate(value)} lines={lines((series) => ratesOf(series, "prompt_tokens", now_ms))} />
      <Chart {...common} title="Requests that ended" format={whole} lines={lines(field("requests"))} />
      <Chart {...common} title="Requests that failed" format={whole} lines={lines(field("failed"))} />
      <Chart {...common} title="Time to first token, p95" format={(value) => formatDuration(value)} lines={lines(field("ttft_p95_ms"), known)} />
      <Chart {...common} title="Between tokens, p95" format={(value) => formatDuration(value)} lines={lines(field("itl_p95_ms"), known)} />
      <Chart {...common} title="Time in the queue, p95" format={(value) => formatDuration(value)} lines={lines(field("queue_p95_ms"), known)} />
      <Chart {...common} title="In slots, most at a time" format={whole} lines={lines(field("busy_max"))} />
    </div>
  );
}
