import { clientOf, formatDuration, formatInteger, formatTime } from "../../core/format";
import { hrefOf } from "../../core/router";
import { second, wallTime } from "../../core/time";
import { Badge, type Column, Empty, Table } from "../../ui";
import type { ChartState } from "./chart_state";
import { LOOKS } from "./kinds";
import type { Track } from "./lane";
import { nameOf, placeName } from "./words";

/** The newest of what is in sight. */
const MAX_ROWS = 1000;

interface Row {
  track: Track;
  place: string;
  length_ms: number;
}

/** The same as the chart, in words: what was in the queue and in slots in the time that the chart shows. */
export function TimelineTable({ state }: { state: ChartState }) {
  second.value; // once a second is as fast as one can read
  const rows = rowsInSight(state);
  return (
    <Table
      label="What happened in the queue and in the slots"
      columns={columnsAt(state.now_ms)}
      rows={rows}
      rowKey={({ track, place }) => `${place} ${track.request} ${track.start_ms}`}
      sort={{ column: "since", descending: true }}
      empty={<Empty title="Nothing happened" advice="No request was in the queue or in a slot in the time that is shown." />}
    />
  );
}

function columnsAt(now_ms: number): readonly Column<Row>[] {
  return [
    {
      id: "request",
      title: "Request",
      render: ({ track }) => (
        <a class="timeline-link truncate" href={hrefOf("requests", [track.request])} title={nameOf(track)}>
          {nameOf(track)}
        </a>
      ),
      value: ({ track }) => track.request,
    },
    { id: "client", title: "Client", render: ({ track }) => track.view ? clientOf(track.view) : "", value: ({ track }) => track.view ? clientOf(track.view) : "", hide: "narrow" },
    { id: "place", title: "Where", render: ({ place }) => place, value: ({ place }) => place },
    {
      id: "state",
      title: "State",
      render: ({ track }) => stateOf(track),
      value: ({ track }) => (track.end_ms === null ? (track.stages.at(-1)?.kind ?? "") : "ended"),
      hide: "narrow",
    },
    {
      id: "since",
      title: "Since",
      align: "right",
      render: ({ track }) => formatTime(wallTime(track.start_ms)),
      value: ({ track }) => track.start_ms,
    },
    {
      id: "length",
      title: "Duration",
      align: "right",
      width: "112px",
      render: ({ length_ms }) => formatDuration(length_ms),
      value: ({ length_ms }) => length_ms,
    },
    {
      id: "prefill",
      title: "Prefill",
      align: "right",
      width: "112px",
      hide: "medium",
      render: ({ track }) => formatDuration(lengthOf(track, ["cached", "prefill"], now_ms)),
      value: ({ track }) => lengthOf(track, ["cached", "prefill"], now_ms),
    },
    {
      id: "tokens",
      title: "Tokens",
      align: "right",
      width: "96px",
      hide: "medium",
      render: ({ track }) => formatInteger(track.view?.tokens),
      value: ({ track }) => track.view?.tokens ?? null,
    },
  ];
}

function stateOf(track: Track) {
  const stage = track.stages.at(-1);
  if (track.end_ms === null && stage !== undefined) {
    return <Badge tone={stage.kind === "queued" ? "warn" : "info"}>{LOOKS[stage.kind].label}</Badge>;
  }
  if (track.placement < 0 && track.view !== null) {
    return <Badge>{track.view.placements.length > 0 ? "got a slot" : "ended"}</Badge>;
  }
  const ending = track.view?.placements[track.placement]?.ending ?? "ended";
  return <Badge tone={ending === "done" ? "ok" : "quiet"}>{ending}</Badge>;
}

function lengthOf(track: Track, kinds: readonly string[], now_ms: number): number | null {
  const found = track.stages.filter((stage) => kinds.includes(stage.kind));
  return found.length === 0 ? null : found.reduce((sum, stage) => sum + (stage.end_ms ?? now_ms) - stage.start_ms, 0);
}

function rowsInSight(state: ChartState): Row[] {
  const { end_ms, span_ms } = state.view.value;
  const rows: Row[] = [];
  for (const group of state.history.groups) {
    for (let lane = 0; lane < group.lanes; lane += 1) {
      const found = group.lane(lane);
      const tracks = found?.tracks ?? [];
      for (let place = found?.firstAfter(end_ms - span_ms) ?? 0; place < tracks.length; place += 1) {
        const track = tracks[place] as Track;
        if (track.start_ms >= end_ms) {
          break;
        }
        const length_ms = Math.max(0, (track.end_ms ?? state.now_ms) - track.start_ms);
        rows.push({ track, place: placeName(group, lane), length_ms });
      }
    }
  }
  return rows.sort((a, b) => b.track.start_ms - a.track.start_ms).slice(0, MAX_ROWS);
}
