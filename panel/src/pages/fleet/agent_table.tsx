import { formatAge, formatBytes, formatCount, formatPercent } from "../../core/format";
import { now, second } from "../../core/time";
import type { Agent } from "../../types";
import { Badge, Button, type Column, Table } from "../../ui";
import { modelName, revisionOf, stateOf } from "./agent_facts";
import type { AgentActions } from "./agent_list";

/** Many agents, one a line. */
export function AgentTable({ agents, actions }: { agents: readonly Agent[]; actions: AgentActions }) {
  second.value;
  return (
    <Table
      label="Agents"
      rows={agents}
      rowKey={(agent) => agent.key}
      rowHeight={40}
      columns={columnsOf(actions)}
      maxHeight="640px"
    />
  );
}

function columnsOf(actions: AgentActions): Column<Agent>[] {
  return [
    {
      id: "name",
      title: "Agent",
      width: "14%",
      render: (agent) => <b class="name">{agent.label}</b>,
    },
    {
      id: "state",
      title: "State",
      width: "14%",
      render: (agent) => {
        const state = stateOf(agent, now());
        return (
          <span class="row nowrap">
            <Badge tone={state.tone} title={state.detail || undefined}>
              {state.word}
            </Badge>
            {agent.issues.length ? (
              <Button kind="quiet" size="small" icon="warning" aria-label={`Issues of ${agent.label}`} onClick={() => actions.showIssues(agent)} />
            ) : null}
          </span>
        );
      },
    },
    {
      id: "slots",
      title: "Slots",
      width: "15%",
      render: (agent) => <SlotBar agent={agent} />,
    },
    {
      id: "model",
      title: "Model",
      hide: "medium",
      render: (agent) => (
        <span class="table-model truncate" title={agent.model_path ?? undefined}>
          {modelName(agent.model_path) ?? "–"} <span class="muted mono">{revisionOf(agent)?.word}</span>
        </span>
      ),
    },
    {
      id: "generated",
      title: "tok/s",
      align: "right",
      width: "72px",
      render: (agent) => (agent.rates ? formatCount(agent.rates.generated_tokens_per_s) : "–"),
    },
    {
      id: "prompt",
      title: "Prompts",
      align: "right",
      width: "84px",
      hide: "narrow",
      render: (agent) => (agent.rates ? formatCount(agent.rates.prompt_tokens_per_s) : "–"),
    },
    {
      id: "hits",
      title: "Cached",
      align: "right",
      width: "72px",
      hide: "narrow",
      render: (agent) => formatPercent(agent.rates?.cached_ratio),
    },
    {
      id: "memory",
      title: "Memory",
      align: "right",
      width: "92px",
      hide: "medium",
      render: (agent) =>
        agent.memory ? formatBytes(agent.memory.devices.reduce((sum, device) => sum + (device.actual ?? device.predicted ?? 0), 0)) : "–",
    },
    {
      id: "link",
      title: "Linked",
      align: "right",
      width: "104px",
      hide: "medium",
      render: (agent) => formatAge(now() - agent.joined_ms),
    },
    {
      id: "actions",
      title: "",
      align: "right",
      width: "92px",
      hide: "narrow",
      render: (agent) => (
        <Button
          size="small"
          kind="quiet"
          busy={actions.isBusy(agent)}
          aria-label={`${agent.is_drained ? "Undrain" : "Drain"} ${agent.label}`}
          onClick={() => actions.drain(agent)}
        >
          {agent.is_drained ? "Undrain" : "Drain"}
        </Button>
      ),
    },
  ];
}

function SlotBar({ agent }: { agent: Agent }) {
  const whole = Math.max(1, agent.slots_total || agent.desired_slots_total, agent.lanes.length);
  const count = { q: 0, p: 0, d: 0, s: 0 };
  for (const [, phase] of agent.lanes) {
    count[phase] += 1;
  }
  return (
    <span class="slot-bar" role="img" aria-label={`${agent.lanes.length} of ${agent.slots_total} slots busy`}>
      <span class="bar-track">
        {(["d", "p", "q", "s"] as const).map((phase) =>
          count[phase] ? <span key={phase} class={phase} style={{ width: `${(count[phase] / whole) * 100}%` }} /> : null,
        )}
      </span>
      <span class="bar-count">
        {agent.lanes.length}/{agent.slots_total}
      </span>
    </span>
  );
}
