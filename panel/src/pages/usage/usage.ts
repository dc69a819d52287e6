/** What the page Usage asks for and adds up. Pure. */

import type { UsageRow, UsageTable } from "../../types";

export interface Wanted {
  readonly by: UsageTable["by"];
  readonly per: "day" | "month";
  /** `2026-11`; empty for all that is kept. */
  readonly month: string;
}

/** What an address asks for; what makes no sense in it is left out. */
export function wantedIn(query: URLSearchParams): Wanted {
  const by = query.get("by");
  const month = query.get("month") ?? "";
  return {
    by: by === "user" || by === "model" ? by : "key",
    per: query.get("per") === "day" ? "day" : "month",
    month: /^\d{4}-\d{2}$/.test(month) ? month : "",
  };
}

/** The balancer's route for it. */
export function pathOf(wanted: Wanted, format?: "csv"): string {
  const query = new URLSearchParams({ by: wanted.by, per: wanted.per });
  if (wanted.month !== "") {
    query.set("month", wanted.month);
  }
  if (format !== undefined) {
    query.set("format", format);
  }
  return `api/v2/usage?${query}`;
}

/** The months for which usage is kept, of UTC, the newest first. */
export function monthsBefore(now: Date): string[] {
  return Array.from({ length: 14 }, (_, back) => {
    const month = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1));
    return month.toISOString().slice(0, 7);
  });
}

export interface Totals {
  readonly requests: number;
  readonly refused: number;
  readonly prompt_tokens: number;
  readonly cached_tokens: number;
  readonly generated_tokens: number;
}

export function totalsOf(rows: readonly UsageRow[]): Totals {
  const sum = (field: keyof Totals) => rows.reduce((all, row) => all + row[field], 0);
  return {
    requests: sum("requests"),
    refused: sum("refused"),
    prompt_tokens: sum("prompt_tokens"),
    cached_tokens: sum("cached_tokens"),
    generated_tokens: sum("generated_tokens"),
  };
}
