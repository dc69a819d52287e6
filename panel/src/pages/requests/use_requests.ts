/** The requests of the page: those in flight follow the feed, finished ones are fetched in pages. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api } from "../../core/api";
import { store } from "../../core/store";
import type { RequestList, RequestView } from "../../types";
import { type Filter, listPath, matches } from "./filter";
import { NOTHING, type Recent, withEnded, withPage } from "./recent";
import { useDue } from "./use_due";

export const PAGE = 100;
/** What the balancer lists at once. */
export const MOST = 1000;
const REFRESH_S = 2;

export interface Shown {
  views: readonly RequestView[];
  loading: boolean;
  error: unknown;
  retry: () => void;
  /** Null if there are no older ones. */
  more: (() => void) | null;
  /** More are in flight than the feed sends: this is a part, fetched anew every few seconds. */
  partial: boolean;
}

/** In flight, as the feed has them; beyond its limit, as the balancer lists the newest. */
export function useInFlight(filter: Filter, enabled: boolean): Shown {
  const known = store.requests.value;
  const balancer = store.balancer.value;
  const expected = balancer === null ? 0 : balancer.slots.busy + balancer.buffer.waiting;
  const live = useMemo(() => [...known.values()].filter((view) => view.phase !== "ended"), [known]);
  // Counts and requests come in different topics: a few more or less are no reason to ask.
  const partial = enabled && expected > 2000 && live.length < expected / 2;
  const [listed, setListed] = useState<readonly RequestView[]>([]);
  const [error, setError] = useState<unknown>(null);
  const path = listPath(filter, { limit: MOST });
  const { isDue, answered } = useDue(REFRESH_S, path);
  useEffect(() => {
    if (!partial || !isDue) {
      return;
    }
    const ended = new AbortController();
    api.get<RequestList>(path, ended.signal).then(
      (list) => {
        setListed(list.requests);
        setError(null);
        answered();
      },
      (failure: unknown) => {
        if (!ended.signal.aborted) {
          setError(failure);
          answered();
        }
      },
    );
    return () => ended.abort();
  }, [partial, isDue, path]);
  const source = partial ? listed : live;
  const views = useMemo(() => source.filter((view) => matches(view, filter)), [source, filter]);
  return {
    views,
    loading: !store.known.value.has("requests"),
    error: partial ? error : null,
    retry: () => setError(null),
    more: null,
    partial,
  };
}

/** Finished ones: the newest, older ones on demand, and while `follows` those that end. */
export function useFinished(filter: Filter, enabled: boolean, follows: boolean): Shown {
  const [recent, setRecent] = useState<Recent>(NOTHING);
  const [loading, setLoading] = useState(true);
  const [error, setError] = useState<unknown>(null);
  const [tries, setTries] = useState(0);
  const current = useRef(0);
  const path = listPath({ ...filter, state: "finished" }, { limit: PAGE });
  const started = store.balancer.value?.started;
  const isLive = store.connection.value.state === "live";
  const fetchPage = (from: Recent, before: number | null): void => {
    current.current += 1;
    const mine = current.current;
    setLoading(true);
    setError(null);
    api.get<RequestList>(before === null ? path : `${path}&before=${before}`).then(
      (list) => {
        if (mine === current.current) {
          setRecent((known) => withPage(before === null ? from : known, list.requests, list.next));
          setLoading(false);
        }
      },
      (failure: unknown) => {
        if (mine === current.current) {
          setError(failure);
          setLoading(false);
        }
      },
    );
  };
  useEffect(() => {
    if (enabled && isLive) {
      setRecent(NOTHING);
      fetchPage(NOTHING, null);
    }
    return () => {
      current.current += 1;
    };
  }, [enabled, path, tries, started, isLive]);
  const known = store.requests.value;
  useEffect(() => {
    if (enabled && follows) {
      setRecent((before) => withEnded(before, known.values(), filter));
    }
  }, [known, enabled, follows]);
  const views = useMemo(
    () => recent.views.filter((view) => matches(view, { ...filter, state: "finished" })),
    [recent, filter],
  );
  const { next } = recent;
  return {
    views,
    loading,
    error,
    retry: () => setTries((count) => count + 1),
    more: next === null || loading ? null : () => fetchPage(recent, next),
    partial: false,
  };
}
