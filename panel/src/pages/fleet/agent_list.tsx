import { useEffect, useMemo, useState } from "preact/hooks";
import { api } from "../../core/api";
import { compareNames, plural } from "../../core/format";
import { store } from "../../core/store";
import { now } from "../../core/time";
import type { Agent } from "../../types";
import { Empty, Icon, Input, Segmented, Select, textOf, toast } from "../../ui";
import { AgentCard } from "./agent_card";
import { machinesIn, matches, stateOf } from "./agent_facts";
import { AgentTable } from "./agent_table";
import { GoneAgents } from "./gone_agents";
import { Issues } from "./issues";
import { LaneBook } from "./lanes";
import { Metadata } from "./metadata";
import { sampleRates } from "./rate_history";
import { VirtualGrid } from "./virtual_grid";

export interface AgentActions {
  drain: (agent: Agent) => void;
  isBusy: (agent: Agent) => boolean;
  showMetadata: (agent: Agent) => void;
  showIssues: (agent: Agent) => void;
}

type View = "cards" | "table";

/** More are shown as a table, until the viewer wants cards. */
const MANY = 24;
/** Of a card among many. */
const CARD_HEIGHT = 480;

const SORTS: Readonly<Record<string, { label: string; value: (agent: Agent) => number | string }>> = {
  name: { label: "by name", value: (agent) => agent.label },
  trouble: { label: "trouble first", value: (agent) => -severity(agent) },
  busy: { label: "busiest first", value: (agent) => -agent.lanes.length / Math.max(1, agent.slots_total) },
  speed: { label: "fastest first", value: (agent) => -(agent.rates?.generated_tokens_per_s ?? 0) },
  newest: { label: "newest link first", value: (agent) => -agent.joined_ms },
};

/** All agents, as cards or as a table. */
export function AgentList() {
  const agents = store.agents.value;
  const gone = store.gone.value;
  const [text, setText] = useState("");
  const [sort, setSort] = useState("name");
  const [chosen, setChosen] = useState<View | null>(null);
  const [busy, setBusy] = useState<ReadonlySet<string>>(new Set());
  const [open, setOpen] = useState<{ what: "metadata" | "issues"; key: number } | null>(null);
  const lanes = useMemo(() => new LaneBook(), []);
  useEffect(sampleRates, []);
  const requests = store.requests.value;
  const shown = useMemo(() => arranged(agents, text, sort), [agents, text, sort]);
  const view = chosen ?? (agents.size > MANY ? "table" : "cards");
  const drain = async (agent: Agent): Promise<void> => {
    setBusy((before) => new Set(before).add(agent.id));
    try {
      await api.send(agent.is_drained ? "DELETE" : "POST", `api/v2/agents/${encodeURIComponent(agent.id)}/drain`);
      toast("ok", agent.is_drained ? `${agent.label} gets requests again.` : `${agent.label} gets no more requests.`);
    } catch (error) {
      toast("bad", `${agent.label}: ${textOf(error)}`);
    } finally {
      setBusy((before) => new Set([...before].filter((id) => id !== agent.id)));
    }
  };
  const actions: AgentActions = {
    drain: (agent) => void drain(agent),
    isBusy: (agent) => busy.has(agent.id),
    showMetadata: (agent) => setOpen({ what: "metadata", key: agent.key }),
    showIssues: (agent) => setOpen({ what: "issues", key: agent.key }),
  };
  const opened = open && agents.get(String(open.key));
  const card = (agent: Agent, isFixed: boolean) => (
    <AgentCard key={agent.key} agent={agent} lanes={lanes.of(agent, requests)} actions={actions} isFixed={isFixed} />
  );
  return (
    <section class="agents" aria-label="Agents">
      <div class="agents-head">
        <h2>
          {plural(machinesIn([...agents.values()]), "agent")}
          {gone.size > 0 ? `, ${gone.size} not here` : ""}
          {shown.length === agents.size ? "" : `, ${shown.length} shown`}
        </h2>
        <span class="grow" />
        <div class="search">
          <Icon name="search" />
          <Input
            type="search"
            value={text}
            onValue={setText}
            placeholder="Name, model, label, state"
            aria-label="Show only agents with these words"
          />
        </div>
        <Select
          aria-label="Order of the agents"
          class="order"
          value={sort}
          onValue={setSort}
          options={Object.entries(SORTS).map(([value, { label }]) => ({ value, label }))}
        />
        <Segmented<View>
          label="View of the agents"
          value={view}
          onValue={setChosen}
          options={[
            { value: "cards", label: <Icon name="cards" />, title: "Cards" },
            { value: "table", label: <Icon name="list" />, title: "Table" },
          ]}
        />
      </div>
      <GoneAgents />
      {agents.size === 0 ? null : shown.length === 0 ? (
        <Empty icon="search" title="No agent has all these words" />
      ) : view === "table" ? (
        <AgentTable agents={shown} actions={actions} />
      ) : shown.length > MANY ? (
        <VirtualGrid items={shown} itemHeight={CARD_HEIGHT} minWidth={320} gap={16} keyOf={(agent) => agent.key} render={(agent) => card(agent, true)} />
      ) : (
        <div class="agent-cards">{shown.map((agent) => card(agent, false))}</div>
      )}
      {open?.what === "metadata" && opened ? <Metadata agent={opened} close={() => setOpen(null)} /> : null}
      {open?.what === "issues" && opened ? <Issues agent={opened} close={() => setOpen(null)} /> : null}
    </section>
  );
}

function arranged(agents: ReadonlyMap<string, Agent>, text: string, sort: string): Agent[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const value = SORTS[sort]?.value ?? ((agent: Agent) => agent.label);
  return [...agents.values()]
    .filter((agent) => matches(agent, words))
    .map((agent) => ({ agent, value: value(agent) }))
    .sort((a, b) => {
      const order =
        typeof a.value === "number" && typeof b.value === "number"
          ? a.value - b.value
          : compareNames(String(a.value), String(b.value));
      return order || compareNames(a.agent.label, b.agent.label) || a.agent.key - b.agent.key;
    })
    .map((each) => each.agent);
}

const SEVERITIES = { bad: 4, warn: 3, info: 2, quiet: 1, ok: 0 } as const;

function severity(agent: Agent): number {
  return SEVERITIES[stateOf(agent, now()).tone] + agent.issues.length / 100;
}
