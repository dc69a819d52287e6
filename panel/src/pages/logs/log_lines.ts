/** Log entries: merged with newer ones, filtered, as one line of text. Pure. */

import type { LogEntry } from "../../types";

/** The balancer keeps as many. */
export const MAX_ENTRIES = 500;

export type Level = "all" | "warning" | "error";

/** Entries known so far and newer ones, oldest first, each once. */
export function merged(known: readonly LogEntry[], newer: readonly LogEntry[]): LogEntry[] {
  const last = known.at(-1)?.seq ?? -Infinity;
  const first = newer[0]?.seq;
  // numbers that begin anew are those of another start of the balancer
  if (first !== undefined && newer.at(-1)!.seq < last) {
    return newer.slice(-MAX_ENTRIES);
  }
  const fresh = newer.filter((entry) => entry.seq > last);
  const groups = new Set(fresh.map((entry) => entry.group));
  return [...known.filter((entry) => !groups.has(entry.group)), ...fresh].slice(-MAX_ENTRIES);
}

/** `440 times, 37 a minute`; empty for one. */
export function countOf(entry: LogEntry): string {
  if (entry.count < 2) {
    return "";
  }
  const minutes = (Date.parse(entry.time) - Date.parse(entry.first)) / 60_000;
  const rate = minutes > 0.05 ? (entry.count - 1) / minutes : 0;
  const words = rate >= 10 ? Math.round(rate) : rate.toFixed(1);
  return `${entry.count} times${rate > 0 ? `, ${words} a minute` : ""}`;
}

export function isError(entry: LogEntry): boolean {
  return entry.level === "error" || entry.level === "critical";
}

/** Those of a level, with every word of the search somewhere in them. */
export function matching(entries: readonly LogEntry[], level: Level, search: string): LogEntry[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return entries.filter((entry) => {
    const isOfLevel = level === "all" || (level === "error") === isError(entry);
    if (!isOfLevel) {
      return false;
    }
    const text = words.length === 0 ? "" : lineOf(entry).toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** `agent=a1 reason="it was silent"`, in the order in which they were logged. */
export function fieldsOf(entry: LogEntry): [name: string, value: string][] {
  return Object.entries(entry.fields).map(([name, value]) => [name, shown(value)]);
}

/** The entry as a line, to be copied. */
export function lineOf(entry: LogEntry): string {
  const fields = fieldsOf(entry).map(([name, value]) => `${name}=${/[\s"]/.test(value) ? JSON.stringify(value) : value}`);
  return [entry.time, entry.level, entry.logger, entry.event, ...fields].filter(Boolean).join(" ");
}

function shown(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
}
