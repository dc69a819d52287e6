/** Agents that joined with a token: who they are, when they were seen, and how to cut one off. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatAge, formatDate } from "../../core/format";
import { store, useTopics } from "../../core/store";
import type { AgentCredential } from "../../types";
import { Badge, Button, Card, Confirm, Problem, Table, toast } from "../../ui";

export function Credentials() {
  useTopics("agents");
  const [list, setList] = useState<readonly AgentCredential[] | null>(null);
  const [problem, setProblem] = useState<ApiError | null>(null);
  const [revoked, setRevoked] = useState<AgentCredential | null>(null);
  const load = async (): Promise<void> => {
    try {
      setList((await api.get<{ credentials: AgentCredential[] }>("api/v2/agent-credentials")).credentials);
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      setProblem(error);
    }
  };
  const connected = store.agents.value.size;
  useEffect(() => void load(), [connected]);
  if (problem !== null) {
    return <Problem error={problem} title="The agents' credentials cannot be loaded" retry={() => void load()} />;
  }
  if (list === null || list.length === 0) {
    return null;
  }
  return (
    <Card title="Agents that joined">
      <Table
        label="Credentials of agents"
        rows={list}
        rowKey={(each) => each.name}
        sort={{ column: "name", descending: false }}
        columns={[
          {
            id: "name",
            title: "name",
            value: (each) => each.name,
            render: (each) => (
              <span class="row">
                <span class="mono">{each.name}</span>
                {each.connected ? <Badge tone="ok">connected</Badge> : null}
                {each.suspicious === null ? null : (
                  <Badge tone="bad">
                    <span title={each.suspicious}>may be copied</span>
                  </Badge>
                )}
              </span>
            ),
          },
          {
            id: "address",
            title: "address",
            hide: "narrow",
            value: (each) => each.address ?? "",
            render: (each) => (each.address === null ? <span class="muted">not seen</span> : <span class="mono">{each.address}</span>),
          },
          {
            id: "seen",
            title: "last seen",
            hide: "narrow",
            value: (each) => each.last_seen ?? "",
            render: (each) => <Ago moment={each.last_seen} />,
          },
          {
            id: "rotated",
            title: "rotated",
            hide: "narrow",
            value: (each) => each.rotated ?? each.created,
            render: (each) => <Ago moment={each.rotated ?? each.created} />,
          },
          {
            id: "revoke",
            title: <span class="unseen">revoke</span>,
            align: "right",
            width: "96px",
            render: (each) => (
              <Button size="small" kind="danger" aria-label={`Revoke the agent ${each.name}`} onClick={() => setRevoked(each)}>
                Revoke
              </Button>
            ),
          },
        ]}
      />
      {revoked === null ? null : (
        <RevokeAgent
          agent={revoked}
          close={() => setRevoked(null)}
          done={() => {
            setRevoked(null);
            void load();
          }}
        />
      )}
    </Card>
  );
}

// ------------------------------------------------------------------------------------- inside

function Ago({ moment }: { moment: string | null }) {
  if (moment === null) {
    return <span class="muted">never</span>;
  }
  const date = new Date(moment);
  return <span title={formatDate(date)}>{formatAge(Date.now() - date.getTime())} ago</span>;
}

function RevokeAgent({ agent, close, done }: { agent: AgentCredential; close: () => void; done: () => void }) {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const revoke = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await api.send("DELETE", `api/v2/agent-credentials/${encodeURIComponent(agent.name)}`);
      toast("ok", `The agent ${agent.name} is cut off.`);
      done();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Confirm title={`Revoke the agent ${agent.name}?`} action="Revoke" busy={isBusy} confirm={() => void revoke()} close={close}>
      <div class="stack">
        {agent.suspicious === null ? null : <p>{agent.suspicious}</p>}
        <p>It is cut off at once, and what it computes goes on elsewhere. To come back it has to join with a new token.</p>
        {error === null ? null : <Problem error={error} />}
      </div>
    </Confirm>
  );
}
