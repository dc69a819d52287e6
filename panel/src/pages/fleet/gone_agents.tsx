import { useState } from "preact/hooks";
import { api } from "../../core/api";
import { formatAge, formatDate, plural } from "../../core/format";
import { store } from "../../core/store";
import { now, second, wallTime } from "../../core/time";
import type { GoneAgent } from "../../types";
import { Badge, Button, type Column, Confirm, Table, textOf, toast } from "../../ui";
import { sentence } from "../requests/waterfall_rows";

/** Agents that were here: since when they are gone, what they said last, and how to forget one. */
export function GoneAgents() {
  const [asking, setAsking] = useState<GoneAgent | null>(null);
  second.value;
  const agents = [...store.gone.value.values()];
  if (agents.length === 0) {
    return null;
  }
  const forget = async (agent: GoneAgent): Promise<void> => {
    setAsking(null);
    try {
      await api.send("DELETE", `api/v2/known_agents/${encodeURIComponent(agent.name)}`);
      toast("ok", `${agent.name} is forgotten.`);
    } catch (error) {
      toast("bad", textOf(error));
    }
  };
  return (
    <>
      <Table<GoneAgent> label="Agents that are not here" rows={agents} rowKey={(agent) => agent.name} columns={columnsOf(setAsking)} />
      {asking ? (
        <Confirm title={`Forget ${asking.name}?`} action="Forget the agent" confirm={() => void forget(asking)} close={() => setAsking(null)}>
          <p>It is listed no more, and expected no more. If it comes back, it is an agent like any other.</p>
        </Confirm>
      ) : null}
    </>
  );
}

function columnsOf(ask: (agent: GoneAgent) => void): Column<GoneAgent>[] {
  return [
    { id: "name", title: "Agent", width: "16%", render: (agent) => <b class="name">{agent.name}</b> },
    { id: "state", title: "State", width: "112px", render: (agent) => <Badge tone={agent.state.severity}>{agent.state.word}</Badge> },
    {
      id: "since",
      title: "Since",
      width: "112px",
      render: (agent) => (
        <time dateTime={agent.since} title={formatDate(new Date(agent.since))}>
          {formatAge(Math.max(0, wallTime(now()).getTime() - Date.parse(agent.since)))}
        </time>
      ),
    },
    {
      id: "words",
      title: "Last words",
      render: (agent) => (
        <span>
          {sentence(agent.state.sentence)}{" "}
          <span class="muted">
            {plural(agent.slots, "slot")} of {agent.deployments.join(", ") || "no deployment"}.
          </span>
        </span>
      ),
    },
    {
      id: "actions",
      title: "",
      align: "right",
      width: "92px",
      render: (agent) => (
        <Button size="small" kind="quiet" aria-label={`Forget ${agent.name}`} onClick={() => ask(agent)}>
          Forget
        </Button>
      ),
    },
  ];
}
