import { clientOf, formatDuration, formatInteger, formatPercent, formatRate, formatTime } from "../../core/format";
import { hrefOf } from "../../core/router";
import { wallTime } from "../../core/time";
import type { RequestView } from "../../types";
import { Badge, type Column } from "../../ui";
import type { State } from "./filter";
import {
  agentsOf,
  cachedPart,
  durationMs,
  firstTokenMs,
  promptTokens,
  queueMs,
  tokensPerSecond,
} from "./figures";

/** All columns, by what the viewer may choose; `request` and `ending` are always there. */
export const COLUMN_NAMES: Readonly<Record<string, string>> = {
  request: "Request",
  ending: "State",
  client: "Client",
  deployment: "Deployment",
  agents: "Agent",
  arrived: "Arrived",
  queue: "Queue",
  ttft: "First token",
  duration: "Duration",
  prompt: "Prompt",
  cached: "Cached",
  tokens: "Tokens",
  speed: "Speed",
  route: "Route",
};
export const FIXED: readonly string[] = ["request", "ending"];
const WHEN_NOT_CHOSEN: readonly string[] = Object.keys(COLUMN_NAMES).filter((id) => !["route", "deployment", "prompt"].includes(id));
const STORED_AS = "paddler-trio-request-columns";

/** The ids of a stored choice, or the usual ones if it is none: of an older version, or not ours. */
export function parseColumns(stored: string | null): readonly string[] {
  let found: unknown;
  try {
    found = JSON.parse(stored ?? "null");
  } catch {
    found = null;
  }
  if (!Array.isArray(found)) {
    return WHEN_NOT_CHOSEN;
  }
  const known = Object.keys(COLUMN_NAMES).filter((id) => FIXED.includes(id) || found.includes(id));
  return known;
}

export function storedColumns(): readonly string[] {
  try {
    return parseColumns(window.localStorage.getItem(STORED_AS));
  } catch {
    return WHEN_NOT_CHOSEN; // storage is forbidden by the browser's settings
  }
}

export function storeColumns(ids: readonly string[]): void {
  try {
    window.localStorage.setItem(STORED_AS, JSON.stringify(ids));
  } catch {
    // A full or forbidden storage: the choice lasts as long as the page.
  }
}

/** The chosen columns, as of a moment. */
export function columnsFor(state: State, ids: readonly string[], now_ms: number): Column<RequestView>[] {
  const right = { align: "right", width: "88px" } as const;
  const all: Column<RequestView>[] = [
    {
      id: "request",
      title: "Request",
      render: (view) => (
        <a class="request-link truncate" href={hrefOf("requests", [view.key])} title={view.id}>
          {view.id || view.key}
        </a>
      ),
      value: (view) => view.key,
    },
    {
      id: "ending",
      title: state === "finished" ? "Ending" : "State",
      render: (view) => {
        const { word, severity } = view.state;
        return (
          <Badge tone={severity} title={view.ending?.text ?? undefined}>
            {word}
          </Badge>
        );
      },
      value: (view) => view.state.word,
    },
    { id: "client", title: "Client", render: (view) => <span class="request-name truncate">{view.client || <span class="muted">{clientOf(view)}</span>}</span>, value: clientOf, hide: "narrow" },
    { id: "deployment", title: "Deployment", render: (view) => view.deployment, value: (view) => view.deployment, hide: "medium" },
    {
      id: "agents",
      title: "Agent",
      render: (view) => <span class="request-name truncate">{agentsOf(view).join(" → ") || "–"}</span>,
      value: (view) => agentsOf(view).join(" "),
      hide: "narrow",
    },
    { id: "route", title: "Route", render: (view) => view.route ?? view.kind, value: (view) => view.route ?? view.kind, hide: "medium" },
    {
      id: "arrived",
      title: "Arrived",
      ...right,
      render: (view) => formatTime(wallTime(view.arrived_ms)),
      value: (view) => view.arrived_ms,
      hide: "medium",
    },
    {
      id: "queue",
      title: "Queue",
      ...right,
      render: (view) => formatDuration(queueMs(view, now_ms)),
      value: (view) => queueMs(view, now_ms),
      hide: "medium",
    },
    {
      id: "ttft",
      title: "First token",
      ...right,
      render: (view) => formatDuration(firstTokenMs(view)),
      value: firstTokenMs,
      hide: "narrow",
    },
    {
      id: "duration",
      title: "Duration",
      ...right,
      render: (view) => formatDuration(durationMs(view, now_ms)),
      value: (view) => durationMs(view, now_ms),
    },
    { id: "prompt", title: "Prompt", ...right, render: (view) => formatInteger(promptTokens(view)), value: promptTokens, hide: "medium" },
    { id: "cached", title: "Cached", ...right, width: "72px", render: (view) => formatPercent(cachedPart(view)), value: cachedPart, hide: "medium" },
    { id: "tokens", title: "Tokens", ...right, width: "72px", render: (view) => formatInteger(view.tokens), value: (view) => view.tokens, hide: "narrow" },
    {
      id: "speed",
      title: "Speed",
      ...right,
      width: "108px",
      render: (view) => formatRate(tokensPerSecond(view, now_ms), "tok"),
      value: (view) => tokensPerSecond(view, now_ms),
      hide: "medium",
    },
  ];
  return all.filter((column) => ids.includes(column.id));
}
