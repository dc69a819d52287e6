/** What a change comes to, before it is stored; and what to do if somebody else was faster. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError } from "../../core/api";
import { formatDate } from "../../core/format";
import { Button, Checkbox, Dialog, Field, Input, Note, Problem, toast } from "../../ui";
import { DiffList } from "./diff_list";
import { stateDiff } from "./diff";
import { objections } from "./fit_check";
import { apply, draft, dryRun, type FleetNow, loadFleet, markRefusal } from "./fleet_state";
import type { Proposal } from "./proposal";
import { refusalOf } from "./refusal";
import type { DeploymentChange, State, StoredRevision } from "./spec";

const MAX_NOTE_CHARS = 1024;

/** `close(true)`: it was stored. */
export function Review({
  proposal: given,
  now,
  close,
}: {
  proposal: Proposal;
  /** The fleet when the review began. */
  now: FleetNow;
  close: (isStored: boolean) => void;
}) {
  const [proposal, setProposal] = useState(given);
  const [current, setCurrent] = useState<StoredRevision>(now.revision);
  const [note, setNote] = useState("");
  const isMoved = current.revision !== proposal.from.revision;
  return isMoved ? (
    <Conflict
      proposal={proposal}
      theirs={current}
      reload={() => {
        toast("info", `Revision ${current.revision} is shown; your changes are dropped.`);
        close(true);
      }}
      putOnTop={() => setProposal(proposal.moved(current))}
      close={() => close(false)}
    />
  ) : (
    <Decision
      proposal={proposal}
      note={note}
      setNote={setNote}
      overtaken={setCurrent}
      close={close}
    />
  );
}

function Decision({
  proposal,
  note,
  setNote,
  overtaken,
  close,
}: {
  proposal: Proposal;
  note: string;
  setNote: (note: string) => void;
  overtaken: (by: StoredRevision) => void;
  close: (isStored: boolean) => void;
}) {
  const before = proposal.from.state;
  const [state] = useState<State>(() => proposal.appliedTo(before));
  const diffs = useMemo(() => stateDiff(before, state), [before, state]);
  const [changes, setChanges] = useState<DeploymentChange[] | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const isGone = useRef(false);
  const refused = (problem: unknown): void => {
    if (isGone.current) {
      return;
    }
    if (problem instanceof ApiError && problem.status === 400) {
      const refusal = refusalOf(problem.text);
      if (proposal.isDraft && markRefusal(refusal)) {
        toast("bad", refusal.text);
        close(false);
        return;
      }
    }
    setError(problem);
  };
  useEffect(() => {
    dryRun(state).then(({ changes: found }) => setChanges(found), refused);
    return () => {
      isGone.current = true;
    };
  }, []);
  const store = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      const stored = await apply(state, note.trim(), proposal.from.revision);
      toast("ok", `Revision ${stored.revision} is stored.`);
      await loadFleet();
      close(true);
    } catch (problem) {
      const found = problem instanceof ApiError && problem.status === 409 ? await loadFleet() : null;
      setBusy(false);
      if (found && found.revision.revision !== proposal.from.revision) {
        overtaken(found.revision);
      } else {
        refused(problem);
      }
    }
  };
  const isNothing = changes !== null && changes.length === 0;
  const [isForced, setForced] = useState(false);
  const open = proposal.isDraft ? draft.value : null;
  const against = open ? objections(open) : new Map<string, never>();
  const mayStore = changes !== null && !isNothing && !busy && (against === null || against.size === 0 || isForced);
  return (
    <Dialog
      title={proposal.title}
      size="wide"
      close={() => close(false)}
      actions={
        <>
          <Button onClick={() => close(false)}>Back</Button>
          <Button kind={proposal.isDraft ? "primary" : "danger"} busy={busy} disabled={!mayStore} onClick={store}>
            {proposal.isDraft ? "Apply" : "Remove"}
          </Button>
        </>
      }
    >
      {error ? <Problem error={error} /> : null}
      {isNothing ? <Note>This is what is in force already: nothing changes.</Note> : null}
      <DiffList diffs={diffs} costs={changes ?? []} />
      {against === null ? <Note>The agents have not said yet whether it fits.</Note> : null}
      {against !== null && against.size > 0 ? (
        <Note tone="bad">
          <ul class="objections">
            {[...against].map(([agent, { word, text }]) => (
              <li key={agent}>
                It {word} on <b>{agent}</b>: {text}
              </li>
            ))}
          </ul>
          <Checkbox label="Apply it all the same" checked={isForced} onValue={setForced} />
        </Note>
      ) : null}
      <Field label="Note" help="Stands in the history, for those who come after you.">
        <Input
          value={note}
          maxLength={MAX_NOTE_CHARS}
          placeholder="Why"
          onValue={setNote}
          onKeyDown={(event) => {
            if (event.key === "Enter" && mayStore) {
              void store();
            }
          }}
        />
      </Field>
      <p class="muted">Made for revision {proposal.from.revision}. If another one is in force by then, nothing is stored.</p>
    </Dialog>
  );
}

function Conflict({
  proposal,
  theirs,
  reload,
  putOnTop,
  close,
}: {
  proposal: Proposal;
  theirs: StoredRevision;
  reload: () => void;
  putOnTop: () => void;
  close: () => void;
}) {
  const before = proposal.from.state;
  const collisions = proposal.collisions(theirs.state);
  return (
    <Dialog
      title="Somebody else changed the fleet"
      size="wide"
      close={close}
      actions={
        <>
          <Button onClick={close}>Back to the form</Button>
          <Button kind="danger" onClick={reload}>
            Reload, drop mine
          </Button>
          <Button kind="primary" onClick={putOnTop}>
            Put mine on top
          </Button>
        </>
      }
    >
      <Note tone="warn">
        <p>
          Revision {theirs.revision} is in force, stored by <b>{theirs.author}</b> at {formatDate(new Date(theirs.time))}
          {theirs.note ? <>: “{theirs.note}”</> : "."}
        </p>
        <p>Yours was made for revision {proposal.from.revision}. Nothing of it is stored.</p>
      </Note>
      {collisions.length > 0 ? (
        <ul class="collisions">
          {collisions.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      ) : (
        <p class="muted">You changed other things than they did: yours fits on top of theirs.</p>
      )}
      <div class="versions">
        <section aria-label="Their changes">
          <h3>Theirs, in force</h3>
          <DiffList diffs={stateDiff(before, theirs.state)} empty="The same as before." />
        </section>
        <section aria-label="Your changes">
          <h3>Yours</h3>
          <DiffList diffs={stateDiff(before, proposal.appliedTo(before))} />
        </section>
      </div>
    </Dialog>
  );
}
