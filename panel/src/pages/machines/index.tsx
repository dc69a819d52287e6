/** The machines of agents: what they are, how they do, what is on them, and orders to them. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatBytes, formatPercent } from "../../core/format";
import { hrefOf, navigate, route } from "../../core/router";
import { store, useTopics } from "../../core/store";
import { type Column, Empty, Page, Problem, Table } from "../../ui";
import { type Machine, cpuWords, joined, loadWords, memoryWords } from "./machine_words";
import { MachineView } from "./machine_view";

/** How often the facts are asked for; agents look as often. */
const REFRESH_MS = 5_000;

export default function MachinesPage() {
  useTopics("agents");
  const agents = store.agents.value;
  const [machines, setMachines] = useState<readonly Machine[] | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<void> => {
      try {
        if (!document.hidden) {
          setMachines((await api.get<{ machines: Machine[] }>("api/v2/machines", controller.signal)).machines);
          setProblem(null);
        }
      } catch (error) {
        if (controller.signal.aborted) {
          return;
        }
        if (!(error instanceof ApiError)) {
          throw error;
        }
        setProblem(error);
      }
      timer = setTimeout(() => void ask(), REFRESH_MS);
    };
    void ask();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [round, agents.size]);
  const [name] = route.value.rest;
  const machine = machines?.find((each) => each.host === name || each.name === name);
  return (
    <Page title={name === undefined ? "Machines" : `Machine ${machine?.name ?? name}`} wide>
      <div class="stack">
        {problem === null ? null : <Problem error={problem} title="The machines cannot be loaded" retry={() => setRound(round + 1)} />}
        {name === undefined ? null : (
          <p>
            <a href={hrefOf("machines")}>All machines</a>
          </p>
        )}
        {machines === null ? (
          <div class="skeleton" role="status" aria-busy="true" aria-label="Waiting for the balancer" />
        ) : name === undefined ? (
          <Machines machines={machines} />
        ) : machine === undefined ? (
          <Empty icon="search" title={`No machine ${name} is connected`} advice="It is listed again as soon as its agent is back." />
        ) : (
          <MachineView key={machine.host} machine={machine} />
        )}
      </div>
    </Page>
  );
}

function Machines({ machines }: { machines: readonly Machine[] }) {
  // by its name, which an agent that is started anew keeps, where no other one has it
  const place = (machine: Machine): string => {
    const isOnly = machines.filter((each) => each.name === machine.name).length === 1;
    return hrefOf("machines", [isOnly ? machine.name : machine.host]);
  };
  return machines.length === 0 ? (
    <Empty icon="machines" title="No agent is connected" advice="Each machine with an agent shows up here." />
  ) : (
    <Table
      label="Machines"
      rows={machines}
      rowKey={(machine) => machine.host}
      columns={columnsOf(place)}
      onRow={(machine) => navigate(place(machine))}
      rowLabel={(machine) => `Machine ${machine.name}`}
    />
  );
}

const columnsOf = (place: (machine: Machine) => string): Column<Machine>[] => [
  {
    id: "name",
    title: "Machine",
    value: (machine) => machine.name,
    render: (machine) => (
      <a href={place(machine)}>
        <b>{machine.name}</b>
      </a>
    ),
  },
  { id: "cpu", title: "CPU", hide: "medium", render: ({ facts }) => (facts ? cpuWords(facts) : <i class="muted">says nothing</i>) },
  {
    id: "busy",
    title: "Busy",
    align: "right",
    width: "80px",
    value: ({ facts }) => facts?.busy ?? null,
    render: ({ facts }) => formatPercent(facts?.busy),
  },
  {
    id: "memory",
    title: "Memory free",
    align: "right",
    hide: "narrow",
    value: ({ facts }) => facts?.memory_available_bytes ?? null,
    render: ({ facts }) => (facts ? memoryWords(facts.memory_available_bytes, facts.memory_bytes) : "–"),
  },
  {
    id: "gpu",
    title: "GPU",
    render: ({ facts, devices }) =>
      facts?.gpus.length
        ? facts.gpus.map((gpu) => joined([gpu.name, loadWords(gpu)])).join("; ")
        : devices
            .filter((each) => each.device !== "host")
            .map((each) => `${each.device}, ${formatBytes(each.most_bytes)}`)
            .join("; ") || "–",
  },
  { id: "version", title: "Version", width: "96px", hide: "narrow", value: ({ facts }) => facts?.version ?? null, render: ({ facts }) => facts?.version || "–" },
];
