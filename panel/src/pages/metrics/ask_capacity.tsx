/** Would the fleet keep a time to the first token at another load, with other slots, or with more agents? */

import { useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import type { CapacityAnswer } from "../../types";
import { Badge, Button, Card, Field, Input, Problem } from "../../ui";
import { FIRST, type WhatIf, bodyOf, sentencesOf } from "./what_if";

export function AskCapacity() {
  const [asked, setAsked] = useState<WhatIf>(FIRST);
  const [found, setFound] = useState<CapacityAnswer | null>(null);
  const [problem, setProblem] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const ask = async (): Promise<void> => {
    setBusy(true);
    setProblem(null);
    try {
      setFound(await api.send<CapacityAnswer>("POST", "api/v2/capacity", bodyOf(asked)));
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      setFound(null);
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const input = (name: keyof WhatIf, label: string, inputmode: "decimal" | "numeric" | "text", placeholder = "") => (
    <Field label={label}>
      <Input
        inputMode={inputmode}
        placeholder={placeholder}
        value={asked[name]}
        onValue={(value) => setAsked({ ...asked, [name]: value })}
      />
    </Field>
  );
  return (
    <Card title="What if" label="What if" class="what-if">
      <div class="stack">
        <p class="muted">What came in the last six hours is replayed in virtual time, with the measured speeds of the agents.</p>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void ask();
          }}
        >
          {input("ttft_s", "TTFT p95 within, s", "decimal")}
          {input("at", "Times the load", "decimal")}
          {input("agents", "More agents", "numeric")}
          {input("slots", "Slots of each agent", "numeric", "its own")}
          {input("deployment", "Deployment", "text")}
          <Button type="submit" kind="primary" busy={isBusy}>
            Ask
          </Button>
        </form>
        {problem === null ? null : <Problem error={problem} title="Nothing can be said" />}
        {found === null ? null : (
          <div role="status">
            <Badge tone={found.replayed.holds ? "ok" : "bad"}>{found.replayed.holds ? "holds" : "does not hold"}</Badge>
            {sentencesOf(found).map((sentence) => (
              <p key={sentence}>{sentence}</p>
            ))}
          </div>
        )}
      </div>
    </Card>
  );
}
