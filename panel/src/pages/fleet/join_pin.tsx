/** A PIN with which one machine of the local network joins: made, shown once, and gone. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatDuration } from "../../core/format";
import { store } from "../../core/store";
import { second } from "../../core/time";
import type { JoinPinView, NewJoinPin } from "../../types";
import { Button, Copy, Note, Problem } from "../../ui";

/** Shows PINs for new machines. `onShown` hears whether one is in sight. */
export function JoinPin({ slots, onShown }: { slots: string; onShown: (isShown: boolean) => void }) {
  const [obstacle, setObstacle] = useState<string | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [made, setMade] = useState<NewJoinPin | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    api.get<JoinPinView>("api/v2/join-pins").then((view) => setObstacle(view.problem), setProblem);
  }, []);
  useEffect(() => onShown(made !== null), [made]);
  const make = async (): Promise<void> => {
    setBusy(true);
    setProblem(null);
    try {
      setMade(await api.send<NewJoinPin>("POST", "api/v2/join-pins", {}));
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <section class="stack" aria-label="With a PIN">
      <h3>On the same network, with a PIN</h3>
      {obstacle !== null ? (
        <p class="muted">No PIN can be shown: {obstacle}.</p>
      ) : (
        <>
          {made === null ? null : <Shown made={made} slots={slots} />}
          {problem === null ? null : <Problem error={problem} />}
          <Button busy={isBusy} onClick={() => void make()}>
            {made === null ? "Show a PIN" : "Show another PIN"}
          </Button>
        </>
      )}
    </section>
  );
}

/** The digits, and whether the machine has come. */
function Shown({ made, slots }: { made: NewJoinPin; slots: string }) {
  second.value;
  const [before] = useState(() => new Set(store.agents.peek().keys()));
  const joined = [...store.agents.value].filter(([key]) => !before.has(key)).map(([, agent]) => agent.label);
  const left_ms = new Date(made.expires).getTime() - Date.now();
  if (joined.length > 0) {
    return (
      <Note tone="ok">
        <span role="status">Joined: {joined.join(", ")}.</span>
      </Note>
    );
  }
  if (left_ms <= 0) {
    return <Note tone="warn">The PIN has expired.</Note>;
  }
  return (
    <>
      <Copy text={`paddler-trio agent --discover --slots ${slots}`} label="Copy the command" />
      <p role="status">
        It asks for the PIN of {made.balancer}: <strong class="join-pin mono">{grouped(made.pin)}</strong>
      </p>
      <p class="muted">
        For one machine, {made.tries_left} tries, and {formatDuration(left_ms)}.
      </p>
    </>
  );
}

/** Six digits as people read them. */
export function grouped(pin: string): string {
  return `${pin.slice(0, 3)} ${pin.slice(3)}`;
}
