import { useState } from "preact/hooks";
import { api, ApiError } from "../../core/api";
import type { RequestView } from "../../types";
import { Confirm, Problem, toast } from "../../ui";

/** Asks whether a request is to be ended, and ends it. */
export function CancelRequest({ view, close, done }: { view: RequestView; close: () => void; done?: () => void }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const confirm = async (): Promise<void> => {
    setBusy(true);
    try {
      await api.send("DELETE", `api/v2/requests/${view.key}`);
      toast("ok", `Request ${view.id || view.key} was cancelled.`);
      done?.();
      close();
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 404) {
        toast("info", `Request ${view.id || view.key} had ended already.`);
        done?.();
        close();
      } else {
        setError(failure);
        setBusy(false);
      }
    }
  };
  return (
    <Confirm title="Cancel this request?" action="End the request" busy={busy} confirm={confirm} close={close}>
      <p>
        <span class="mono request-id">{view.id || view.key}</span>
        {view.client ? <> of client {view.client}</> : null} ends now. The client gets an error that an operator cancelled it
        {view.tokens > 0 ? <>; the {view.tokens} tokens that it has stay with it</> : null}.
      </p>
      {error !== null ? <Problem error={error} /> : null}
    </Confirm>
  );
}
