import { useEffect, useState } from "preact/hooks";
import { api, ApiError } from "../../core/api";
import { store } from "../../core/store";
import type { RequestDetail } from "../../types";
import { useDue } from "./use_due";

export interface LoadedRequest {
  detail: RequestDetail | null;
  /** 404 once the balancer has forgotten it. */
  error: unknown;
  reload: () => void;
}

/** One request with all that is known of it; anew a second after each answer while it is in flight. */
export function useRequest(name: string): LoadedRequest {
  const [detail, setDetail] = useState<RequestDetail | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [tries, setTries] = useState(0);
  const isOver = detail?.request.phase === "ended";
  const isLive = store.connection.value.state === "live";
  const started = store.balancer.value?.started;
  const { isDue, answered } = useDue(isOver || isGone(error) ? Number.POSITIVE_INFINITY : 1, `${name} ${started} ${tries}`);
  useEffect(() => {
    setDetail(null);
    setError(null);
  }, [name, started]);
  useEffect(() => {
    if (!isLive || !isDue) {
      return;
    }
    const left = new AbortController();
    api.get<RequestDetail>(`api/v2/requests/${encodeURIComponent(name)}`, left.signal).then(
      (found) => {
        setDetail(found);
        setError(null);
        answered();
      },
      (failure: unknown) => {
        if (!left.signal.aborted) {
          setError(failure);
          answered();
        }
      },
    );
    return () => left.abort();
  }, [name, started, isDue, tries, isLive]);
  return { detail, error, reload: () => setTries((count) => count + 1) };
}

export function isGone(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}
