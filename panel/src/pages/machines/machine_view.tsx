/** One machine: its facts, its engines with orders to them, its files and its logs. */

import { useState } from "preact/hooks";
import { api } from "../../core/api";
import { formatBytes } from "../../core/format";
import { store } from "../../core/store";
import { now, second } from "../../core/time";
import type { Agent } from "../../types";
import { Badge, Button, Card, type Column, Confirm, Facts, Meter, Note, Table, textOf, toast } from "../../ui";
import { modelName, stateOf } from "../fleet/agent_facts";
import { Catalogue } from "./catalogue";
import { LogView } from "./log_view";
import { type Gpu, type Machine, type MachineFacts, cpuWords, joined, loadWords, memoryWords, upWords } from "./machine_words";

export function MachineView({ machine }: { machine: Machine }) {
  const agents = [...store.agents.value.values()].filter((agent) => agent.host === machine.host);
  return (
    <>
      <Card title="Facts">
        {machine.facts === null ? <Note>This agent says nothing of its machine: it is Paddler's, or of an older version.</Note> : <FactsOf machine={machine} facts={machine.facts} />}
      </Card>
      <Engines agents={agents} />
      <Catalogue agents={agents} />
      <LogView key={machine.host} machine={machine} />
    </>
  );
}

function FactsOf({ machine, facts }: { machine: Machine; facts: MachineFacts }) {
  const rows: [string, string][] = [
    ["System", joined([facts.system, facts.kernel])],
    ["CPU", joined([cpuWords(facts), loadWords(facts)])],
    ["Memory free", memoryWords(facts.memory_available_bytes, facts.memory_bytes)],
    ["For models", machine.devices.map((each) => `${each.device}: ${formatBytes(each.most_bytes)} at most`).join(", ")],
    ["paddler-trio", facts.version],
    ["llama.cpp", facts.llama_cpp],
    ["Up", upWords(facts)],
  ];
  return (
    <div class="machine-facts">
      <Facts rows={rows.filter(([, value]) => value !== "")} />
      {facts.gpus.map((gpu, place) => (
        <GpuLine key={place} gpu={gpu} />
      ))}
    </div>
  );
}

function GpuLine({ gpu }: { gpu: Gpu }) {
  const used = gpu.memory_used_bytes;
  return (
    <div class="machine-gpu">
      <p>
        <b>{gpu.name || "GPU"}</b> <span class="muted">{joined([gpu.driver && `driver ${gpu.driver}`, loadWords(gpu)])}</span>
      </p>
      {used !== null && gpu.memory_bytes !== null ? (
        <Meter
          label={`Memory of ${gpu.name || "the GPU"}`}
          max={gpu.memory_bytes}
          segments={[{ label: "used", value: used, text: memoryWords(used, gpu.memory_bytes), color: "--accent" }]}
          legend
        />
      ) : null}
    </div>
  );
}

// ----------------------------------------------------------------------------------- orders

type Order = "unload" | "load" | "restart_engine";

const ASKED: Readonly<Record<"unload" | "restart_engine", { title: string; action: string; words: string }>> = {
  unload: {
    title: "Unload the model of",
    action: "Unload",
    words: "Its memory is freed and it gets no requests. Running answers end first, or go on elsewhere. It loads nothing until you let it, whatever is desired.",
  },
  restart_engine: {
    title: "Restart the engine of",
    action: "Restart",
    words: "Its process ends and another one loads the model. What it answers goes on at other agents; without one, when it is back.",
  },
};

function Engines({ agents }: { agents: readonly Agent[] }) {
  second.value;
  const [asking, setAsking] = useState<{ agent: Agent; order: "unload" | "restart_engine" } | null>(null);
  const [busy, setBusy] = useState<string | null>(null);
  const give = async (agent: Agent, order: Order): Promise<void> => {
    setAsking(null);
    setBusy(agent.id);
    try {
      const answer = await api.send<{ agents: { id: string; problem: string | null }[] }>("POST", `api/v2/agents/${encodeURIComponent(agent.id)}/${order}`);
      const problems = answer.agents.filter((each) => each.problem !== null);
      for (const each of problems) {
        toast("bad", `${agent.label}: ${each.problem}`);
      }
      if (problems.length < answer.agents.length) {
        toast("ok", `${agent.label}: ordered.`);
      }
    } catch (error) {
      toast("bad", `${agent.label}: ${textOf(error)}`);
    } finally {
      setBusy(null);
    }
  };
  return (
    <Card title="Engines">
      <Table label="Engines" rows={agents} rowKey={(agent) => agent.key} columns={columnsOf(busy, (agent, order) => (order === "load" ? void give(agent, order) : setAsking({ agent, order })))} />
      {asking ? (
        <Confirm
          title={`${ASKED[asking.order].title} ${asking.agent.label}?`}
          action={ASKED[asking.order].action}
          confirm={() => void give(asking.agent, asking.order)}
          close={() => setAsking(null)}
        >
          <p>{ASKED[asking.order].words}</p>
          {asking.agent.id === asking.agent.host && agents.length > 1 ? <p>This is the machine's first link: all its deployments are meant.</p> : null}
        </Confirm>
      ) : null}
    </Card>
  );
}

function columnsOf(busy: string | null, order: (agent: Agent, order: Order) => void): Column<Agent>[] {
  return [
    { id: "deployment", title: "Deployment", render: (agent) => <b>{agent.deployment}</b> },
    {
      id: "state",
      title: "State",
      render: (agent) => {
        const state = stateOf(agent, now());
        return (
          <>
            <Badge tone={state.tone}>{state.word}</Badge> <span class="muted">{state.detail}</span>
          </>
        );
      },
    },
    { id: "model", title: "Model", hide: "narrow", render: (agent) => modelName(agent.model_path) ?? "–" },
    {
      id: "actions",
      title: "",
      align: "right",
      render: (agent) => (
        <span class="machine-actions">
          {agent.phase === "unloaded" || agent.phase === "unloading" ? (
            <Button size="small" busy={busy === agent.id} aria-label={`Load the model of ${agent.label}`} onClick={() => order(agent, "load")}>
              Load
            </Button>
          ) : (
            <>
              <Button size="small" busy={busy === agent.id} aria-label={`Restart the engine of ${agent.label}`} onClick={() => order(agent, "restart_engine")}>
                Restart
              </Button>
              <Button size="small" busy={busy === agent.id} aria-label={`Unload the model of ${agent.label}`} onClick={() => order(agent, "unload")}>
                Unload
              </Button>
            </>
          )}
        </span>
      ),
    },
  ];
}
