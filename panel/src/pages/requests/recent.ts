/** The finished requests that the page has: pages of the balancer's list, and what the feed saw end since. Pure. */

import type { RequestView } from "../../types";
import { type Filter, matches } from "./filter";

/** Rows that are kept; older ones are fetched again. */
export const MAX_ROWS = 5_000;

export interface Recent {
  /** Newest first, by key; none is twice. */
  views: readonly RequestView[];
  /** What `before` gets for older ones, null if there are none. */
  next: number | null;
}

export const NOTHING: Recent = { views: [], next: null };

/** A page of older ones after those that are known. */
export function withPage(recent: Recent, views: readonly RequestView[], next: number | null): Recent {
  const all = united(recent.views, views);
  return cut({ views: all, next });
}

/** What ended now and is not known yet; the same object if there is nothing new. */
export function withEnded(recent: Recent, views: Iterable<RequestView>, filter: Filter): Recent {
  const known = new Set(recent.views.map((view) => view.key));
  const added: RequestView[] = [];
  for (const view of views) {
    if (!known.has(view.key) && matches(view, { ...filter, state: "finished", text: "" })) {
      added.push(view);
    }
  }
  return added.length === 0 ? recent : cut({ views: united(added, recent.views), next: recent.next });
}

function united(a: readonly RequestView[], b: readonly RequestView[]): RequestView[] {
  const byKey = new Map<number, RequestView>();
  for (const view of [...b, ...a]) {
    byKey.set(view.key, view);
  }
  return [...byKey.values()].sort((one, other) => other.key - one.key);
}

function cut(recent: Recent): Recent {
  if (recent.views.length <= MAX_ROWS) {
    return recent;
  }
  const views = recent.views.slice(0, MAX_ROWS);
  return { views, next: (views.at(-1) as RequestView).key };
}
