/** Which entries of the audit log are shown. Pure. */

import type { AuditEntry } from "../../types";

/** The newest first; of one action, if one is chosen, with the text anywhere in them. */
export function actsMatching(entries: readonly AuditEntry[], action: string, text: string): AuditEntry[] {
  const wanted = text.trim().toLowerCase();
  return entries
    .filter((each) => action === "" || each.action === action)
    .filter((each) => wanted === "" || wordsOf(each).includes(wanted))
    .reverse();
}

/** What is in an entry beside its main columns. */
export function detailsOf(entry: AuditEntry): string {
  const all = { revision: entry.revision, before: entry.before, after: entry.after, ...entry.details };
  return Object.entries(all)
    .filter(([, value]) => value !== null && value !== "")
    .map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(" ");
}

function wordsOf(entry: AuditEntry): string {
  return [entry.who, entry.source, entry.action, entry.target, entry.outcome, detailsOf(entry)].join(" ").toLowerCase();
}
