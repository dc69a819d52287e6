/** Which requests are shown. It is in the page's address, so that a view can be kept and sent. Pure. */

import { clientOf } from "../../core/format";
import type { Ending, RequestView } from "../../types";

export type State = "in_flight" | "finished";

export interface Filter {
  state: State;
  client: string;
  deployment: string;
  agent: string;
  ending: Ending["kind"] | "";
  /** Anywhere in the id, names, route or the text of the ending; only here, not at the balancer. */
  text: string;
}

export const NO_FILTER: Filter = { state: "in_flight", client: "", deployment: "", agent: "", ending: "", text: "" };
export const ENDINGS: readonly string[] = ["done", "refused", "failed", "stopped", "cancelled"];

/** What an address says; unknown values are ignored. */
export function parseFilter(query: URLSearchParams): Filter {
  const ending = query.get("ending") ?? "";
  return {
    state: query.get("state") === "finished" ? "finished" : "in_flight",
    client: query.get("client") ?? "",
    deployment: query.get("deployment") ?? "",
    agent: query.get("agent") ?? "",
    ending: ENDINGS.includes(ending) ? (ending as Ending["kind"]) : "",
    text: query.get("text") ?? "",
  };
}

/** For the address: what is as without a filter is left out. */
export function queryOf(filter: Filter): Record<string, string> {
  const pairs = Object.entries(filter).filter(([name, value]) => value !== NO_FILTER[name as keyof Filter]);
  return Object.fromEntries(pairs);
}

export function isFiltered(filter: Filter): boolean {
  return Object.entries(filter).some(([name, value]) => name !== "state" && value !== "");
}

/** The route that lists these requests, relative to the page. */
export function listPath(
  filter: Filter,
  more: { limit?: number; before?: number | null; format?: "csv" | "json" },
): string {
  const query = new URLSearchParams({ state: filter.state });
  if (more.limit !== undefined) {
    query.set("limit", String(more.limit));
  }
  for (const name of ["client", "deployment", "agent", "ending"] as const) {
    if (filter[name] !== "" && !(name === "ending" && filter.state === "in_flight")) {
      query.set(name, filter[name]);
    }
  }
  if (more.before != null) {
    query.set("before", String(more.before));
  }
  if (more.format !== undefined) {
    query.set("format", more.format);
  }
  return `api/v2/requests?${query}`;
}

/** Whether the filter lets it through; the same as what the balancer does, and the text. */
export function matches(view: RequestView, filter: Filter): boolean {
  return (
    (view.phase === "ended") === (filter.state === "finished") &&
    (filter.client === "" || clientOf(view) === filter.client) &&
    (filter.deployment === "" || view.deployment === filter.deployment) &&
    (filter.agent === "" || view.placements.some((each) => each.agent === filter.agent)) &&
    (filter.state === "in_flight" || filter.ending === "" || view.ending?.kind === filter.ending) &&
    hasText(view, filter.text)
  );
}

export function hasText(view: RequestView, text: string): boolean {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") {
    return true;
  }
  const texts = [
    String(view.key),
    view.id,
    clientOf(view),
    view.deployment,
    view.kind,
    view.route ?? "",
    view.ending?.text ?? "",
    ...view.placements.map((each) => each.agent),
  ];
  return texts.some((each) => each.toLowerCase().includes(wanted));
}

/** The name of an exported file. */
export function exportName(state: State, format: "csv" | "json", time: Date): string {
  const stamp = time.toISOString().slice(0, 19).replaceAll(":", "").replace("T", "-");
  return `requests-${state.replace("_", "-")}-${stamp}Z.${format}`;
}
