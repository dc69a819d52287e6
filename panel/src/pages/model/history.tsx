/** Revisions of the fleet: who, when, why, what; and back to one of them. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { formatDate, plural } from "../../core/format";
import { hrefOf, navigate } from "../../core/router";
import { Badge, Button, Card, Confirm, Page, Problem, textOf, toast } from "../../ui";
import { DiffList } from "./diff_list";
import { type DeploymentDiff, stateDiff } from "./diff";
import { fleetNow, history, loadFleet, loadHistory, undoTo } from "./fleet_state";
import { costWords } from "./cost_words";
import type { StoredRevision } from "./spec";

export function History() {
  const [error, setError] = useState<unknown>(null);
  const [back, setBack] = useState<StoredRevision | null>(null);
  const [busy, setBusy] = useState(false);
  const inForce = fleetNow.value?.revision.revision;
  const load = (): void => {
    setError(null);
    loadHistory().catch(setError);
  };
  useEffect(load, [inForce]);
  const revisions = history.value;
  const newest = revisions?.[0];
  const undo = async (to: StoredRevision): Promise<void> => {
    setBusy(true);
    try {
      const stored = await undoTo(to.revision, newest?.revision ?? 0);
      toast("ok", `Revision ${stored.revision} is as revision ${to.revision} was.`);
    } catch (problem) {
      toast("bad", textOf(problem));
    }
    await loadFleet();
    load();
    setBusy(false);
    setBack(null);
  };
  return (
    <Page title="History" actions={<Button onClick={() => navigate(hrefOf("model"))}>Deployments</Button>}>
      {error ? <Problem error={error} retry={load} /> : null}
      {revisions === null && !error ? <div class="skeleton" /> : null}
      <ol class="revisions-list">
        {revisions?.map((revision, place) => (
          <li key={revision.revision}>
            <RevisionCard
              revision={revision}
              before={revisions[place + 1]}
              isInForce={place === 0}
              goBack={() => setBack(revision)}
            />
          </li>
        ))}
      </ol>
      {back && newest ? (
        <Confirm
          title={`Back to revision ${back.revision}?`}
          action="Store it as a new revision"
          kind="primary"
          busy={busy}
          confirm={() => void undo(back)}
          close={() => setBack(null)}
        >
          <p>The whole fleet is desired again as it was at {formatDate(new Date(back.time))}. This changes:</p>
          <DiffList diffs={stateDiff(newest.state, back.state)} empty="Nothing: it is the same as what is in force." />
        </Confirm>
      ) : null}
    </Page>
  );
}

function RevisionCard({
  revision,
  before,
  isInForce,
  goBack,
}: {
  revision: StoredRevision;
  before: StoredRevision | undefined;
  isInForce: boolean;
  goBack: () => void;
}) {
  const diffs = useMemo(() => (before ? stateDiff(before.state, revision.state) : null), [before, revision]);
  return (
    <Card
      class="revision"
      label={`Revision ${revision.revision}`}
      title={
        <span class="row">
          Revision {revision.revision}
          {isInForce ? <Badge tone="ok">in force</Badge> : null}
        </span>
      }
      actions={
        isInForce ? null : (
          <Button size="small" icon="undo" aria-label={`Back to revision ${revision.revision}`} onClick={goBack}>
            Back to this
          </Button>
        )
      }
    >
      <p class="who">
        <b>{revision.author || "a new balancer"}</b>
        <time class="muted" dateTime={revision.time}>
          {formatDate(new Date(revision.time))}
        </time>
      </p>
      {revision.note ? <p class="note-text">“{revision.note}”</p> : null}
      {revision.failed.length > 0 ? (
        <p class="note-text">
          <Badge tone="bad">failed</Badge> {revision.failed.join(", ")}
        </p>
      ) : null}
      {diffs === null ? (
        <p class="muted">The oldest that is kept: {plural(revision.state.deployments.length, "deployment")}.</p>
      ) : (
        <Summary diffs={diffs} />
      )}
    </Card>
  );
}

function Summary({ diffs }: { diffs: readonly DeploymentDiff[] }) {
  return (
    <details class="revision-diff">
      <summary>
        {diffs.map((diff) => (
          <span class="summary-part" key={diff.deployment}>
            <b>{diff.deployment}</b>{" "}
            <Badge tone={costWords(diff.cost ?? (diff.kind === "added" ? "added" : "removed")).tone}>
              {costWords(diff.cost ?? (diff.kind === "added" ? "added" : "removed")).word}
            </Badge>{" "}
            <span class="muted">{diff.fields.map((field) => field.label.toLowerCase()).join(", ")}</span>
          </span>
        ))}
        {diffs.length === 0 ? <span class="muted">the same deployments</span> : null}
      </summary>
      <DiffList diffs={diffs} />
    </details>
  );
}
