/** Tokens with which machines join: made, shown once, listed, revoked. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatDuration, plural } from "../../core/format";
import { store } from "../../core/store";
import { second } from "../../core/time";
import type { JoinToken, JoinTokenList, NewJoinToken } from "../../types";
import { Button, Copy, Field, Input, Note, Problem, Select, toast } from "../../ui";

const LIFETIMES = [
  { value: "3600", label: "an hour" },
  { value: "86400", label: "a day" },
  { value: "604800", label: "a week" },
] as const;
const MAX_USES = 10_000;

/** Makes tokens for new machines; without a `name` each chooses its own. `onShown` hears whether one is in sight. */
export function JoinTokens({
  name,
  slots,
  onShown,
}: {
  name: string;
  slots: string;
  onShown: (isShown: boolean) => void;
}) {
  const [list, setList] = useState<JoinTokenList | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [lifetime, setLifetime] = useState<string>(LIFETIMES[0].value);
  const [uses, setUses] = useState("1");
  const [made, setMade] = useState<NewJoinToken | null>(null);
  const [isBusy, setBusy] = useState(false);
  const load = async (): Promise<void> => {
    try {
      setList(await api.get<JoinTokenList>("api/v2/join-tokens"));
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  useEffect(() => void load(), []);
  useEffect(() => onShown(made !== null), [made]);
  const usesAreWrong = !/^\d+$/.test(uses) || Number(uses) < 1 || Number(uses) > MAX_USES;
  const make = async (): Promise<void> => {
    setBusy(true);
    setProblem(null);
    try {
      const body = { ttl_s: Number(lifetime), uses: Number(uses), name: name === "" ? null : name };
      setMade(await api.send<NewJoinToken>("POST", "api/v2/join-tokens", body));
      await load();
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  const revoke = async (token: JoinToken): Promise<void> => {
    setProblem(null);
    try {
      await api.send("DELETE", `api/v2/join-tokens/${encodeURIComponent(token.id)}`);
      toast("ok", `The join token ${token.id} is revoked.`);
      setMade((shown) => (shown?.id === token.id ? null : shown));
      await load();
    } catch (error) {
      setProblem(asProblem(error));
    }
  };
  if (list === null) {
    return problem === null ? (
      <div class="skeleton short" role="status" aria-busy="true" aria-label="Asking the balancer" />
    ) : (
      <Problem error={problem} title="Join tokens cannot be loaded" retry={() => void load()} />
    );
  }
  if (list.problem !== null) {
    return <Note tone="warn">No join token can be made: {list.problem}.</Note>;
  }
  return (
    <div class="stack">
      {made === null ? (
        <>
          <p>This balancer asks agents for a key. A join token lets a machine get one of its own.</p>
          <div class="add-agent-fields">
            <Field label="Valid for" help="Until then machines may join with it.">
              <Select value={lifetime} options={LIFETIMES} onValue={setLifetime} />
            </Field>
            <Field
              label="Machines"
              help="So many may join with it."
              error={usesAreWrong && `A number from 1 to ${MAX_USES}`}
            >
              <Input type="number" min={1} max={MAX_USES} value={uses} onValue={setUses} />
            </Field>
          </div>
          <Button kind="primary" busy={isBusy} disabled={usesAreWrong} onClick={() => void make()}>
            Make a join token
          </Button>
        </>
      ) : (
        <Made made={made} slots={slots} another={() => setMade(null)} />
      )}
      {problem === null ? null : <Problem error={problem} />}
      <OpenTokens tokens={list.tokens} revoke={(token) => void revoke(token)} />
    </div>
  );
}

/** The line for the new machine, and whether it has come. */
function Made({ made, slots, another }: { made: NewJoinToken; slots: string; another: () => void }) {
  const [before] = useState(() => new Set(store.agents.peek().keys()));
  const joined = [...store.agents.value].filter(([key]) => !before.has(key)).map(([, agent]) => agent.label);
  return (
    <>
      <Note tone="warn">The token is shown only now. It is good {until(made.expires)}.</Note>
      <Copy text={commandOf(made.token, slots)} label="Copy the command" />
      {joined.length === 0 ? (
        <p class="muted" role="status">
          Waiting for an agent to join …
        </p>
      ) : (
        <Note tone="ok">
          <span role="status">Joined: {joined.join(", ")}.</span>
        </Note>
      )}
      <Button onClick={another}>Make another one</Button>
    </>
  );
}

function OpenTokens({ tokens, revoke }: { tokens: readonly JoinToken[]; revoke: (token: JoinToken) => void }) {
  if (tokens.length === 0) {
    return null;
  }
  return (
    <section aria-label="Join tokens">
      <h3>Join tokens</h3>
      <ul class="join-tokens">
        {tokens.map((token) => (
          <li key={token.id}>
            <span>
              <span class="mono">{token.id}</span> for {token.name ?? plural(token.uses_left, "machine")}, {until(token.expires)}
              {token.by ? `, made by ${token.by}` : ""}
            </span>
            <Button size="small" kind="danger" aria-label={`Revoke the join token ${token.id}`} onClick={() => revoke(token)}>
              Revoke
            </Button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The secret goes through the shell's standard input, where no list of processes shows it. */
export function commandOf(token: string, slots: string): string {
  return `paddler-trio join --slots ${slots} <<< '${token}'`;
}

function until(expires: string): string {
  second.value;
  const left_ms = new Date(expires).getTime() - Date.now();
  return left_ms <= 0 ? "no longer" : `for ${formatDuration(left_ms)}`;
}

function asProblem(error: unknown): ApiError {
  if (!(error instanceof ApiError)) {
    throw error;
  }
  return error;
}
