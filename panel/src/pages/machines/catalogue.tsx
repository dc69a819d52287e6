/** The models that a machine keeps: what they are for, what is on its way, and what may go. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, request } from "../../core/api";
import { formatAge, formatBytes, formatDate } from "../../core/format";
import { now, second, wallTime } from "../../core/time";
import type { Agent } from "../../types";
import { Badge, Button, Card, type Column, Confirm, Empty, Meter, Note, Problem, Table, textOf, toast } from "../../ui";
import { downloadText } from "../fleet/agent_facts";
import { type CachedModel, type CatalogueRow, catalogue, readAnswers } from "./machine_words";

const ANSWER_MS = 60_000;
/** The balancer takes so many sources of what is kept. */
const MAX_KEPT = 64;

interface Removal {
  row: CatalogueRow;
  /** What would go: paths and bytes. */
  paths: readonly string[];
  freed_bytes: number;
}

export function Catalogue({ agents }: { agents: readonly Agent[] }) {
  const ids = agents
    .filter((agent) => agent.protocol === "paddler-trio.1")
    .map((agent) => agent.id)
    .sort();
  const names = ids.join(" ");
  const fetched = agents.map((agent) => agent.download_filename ?? "").join(" ");
  const [rows, setRows] = useState<readonly CatalogueRow[] | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [round, setRound] = useState(0);
  const [removal, setRemoval] = useState<Removal | null>(null);
  const [busy, setBusy] = useState(false);
  const deployments = useMemo(() => new Map(agents.map((agent) => [agent.id, agent.deployment])), [agents]);
  useEffect(() => {
    if (ids.length === 0) {
      return undefined;
    }
    const controller = new AbortController();
    const ask = async (): Promise<void> => {
      try {
        const query = new URLSearchParams(ids.map((id) => ["agent", id]));
        const answer = await request(`api/v2/models?${query}`, { signal: AbortSignal.any([controller.signal, AbortSignal.timeout(ANSWER_MS)]) });
        const answers = readAnswers(await answer.text());
        const refused = answers.find((each) => each.problem !== null);
        setRows(catalogue(answers, (id) => deployments.get(id) ?? id));
        setProblem(refused ? new ApiError(502, refused.problem ?? "") : null);
      } catch (error) {
        if (!controller.signal.aborted) {
          setProblem(error);
        }
      }
    };
    void ask();
    return () => controller.abort();
  }, [names, fetched, round]);
  const remove = async (): Promise<void> => {
    if (removal === null || rows === null) {
      return;
    }
    setBusy(true);
    try {
      const done = await prune(ids, rows, removal.row, false);
      toast("ok", `${formatBytes(done.freed_bytes)} are free again.`);
    } catch (error) {
      toast("bad", textOf(error));
    } finally {
      setBusy(false);
      setRemoval(null);
      setRound(round + 1);
    }
  };
  const ask = async (row: CatalogueRow): Promise<void> => {
    try {
      const found = await prune(ids, rows ?? [], row, true);
      if (found.paths.includes(row.path)) {
        setRemoval({ row, ...found });
      } else {
        toast("warn", `${row.source} stays: it is in use, on its way, or no agent has ever used it.`);
      }
    } catch (error) {
      toast("bad", textOf(error));
    }
  };
  return (
    <Card title="Models on this machine" actions={<Button size="small" icon="retry" aria-label="Look again" onClick={() => setRound(round + 1)} />}>
      <Arriving agents={agents} />
      {problem === null ? null : <Problem error={problem} title="Its models cannot be listed" retry={() => setRound(round + 1)} />}
      {ids.length === 0 ? (
        <Note>Agents of Paddler do not say what they keep.</Note>
      ) : rows === null ? null : rows.length === 0 ? (
        <Empty icon="model" title="It keeps no model" advice="What an agent fetches stays in its cache, and is listed here." />
      ) : (
        <Table<CatalogueRow> label="Models" rows={rows} rowKey={(row) => row.path} columns={columnsOf((row) => void ask(row), (rows ?? []).length)} />
      )}
      {removal ? (
        <Confirm title="Remove from this machine?" action="Remove" busy={busy} confirm={() => void remove()} close={() => setRemoval(null)}>
          <p>
            {formatBytes(removal.freed_bytes)} become free. It is fetched again when it is wanted.
          </p>
          <ul>
            {removal.paths.map((path) => (
              <li key={path} class="mono machine-path">
                {path}
              </li>
            ))}
          </ul>
        </Confirm>
      ) : null}
    </Card>
  );
}

/** What is on its way, with speed and what is left. */
function Arriving({ agents }: { agents: readonly Agent[] }) {
  return (
    <>
      {agents
        .filter((agent) => agent.download_filename !== null)
        .map((agent) => {
          const isOpen = agent.download_indeterminate || agent.download_total === 0;
          const share = isOpen ? 0.4 : agent.download_current / agent.download_total;
          return (
            <div key={agent.key} class="machine-arriving">
              <p class="truncate" title={agent.download_filename ?? undefined}>
                {agent.deployment}: {agent.download?.phase ?? "downloading"} {agent.download_filename}
              </p>
              <Meter label="Download" max={1} indeterminate={isOpen} segments={[{ label: "fetched", value: share, text: downloadText(agent), color: "--accent" }]} />
              <p class="muted">{downloadText(agent)}</p>
            </div>
          );
        })}
    </>
  );
}

/** Let all be kept but one model; or say what that would remove. */
async function prune(agents: readonly string[], rows: readonly CachedModel[], row: CachedModel, dryRun: boolean): Promise<{ paths: string[]; freed_bytes: number }> {
  const kept = [...new Set(rows.filter((each) => each.path !== row.path && each.state !== "local").map((each) => each.source))];
  const body = { agents: agents.slice(0, 1), dry_run: dryRun, ...(kept.length > 0 ? { sources: kept } : { newest: 0 }) };
  const answer = await request("api/v2/models/prune", {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "content-type": "application/json" },
    signal: AbortSignal.timeout(ANSWER_MS),
  });
  for (const line of (await answer.text()).split("\n").filter(Boolean)) {
    const { answer: done, problem } = JSON.parse(line) as {
      answer?: { removed: { path: string; problem: string | null }[]; freed_bytes: number };
      problem?: string;
    };
    if (problem !== undefined) {
      throw new ApiError(502, problem);
    }
    if (done !== undefined) {
      const refused = done.removed.find((each) => each.problem !== null);
      if (refused) {
        throw new ApiError(409, `${refused.path}: ${refused.problem}`);
      }
      return { paths: done.removed.map((each) => each.path), freed_bytes: done.freed_bytes };
    }
  }
  throw new ApiError(502, "The agent did not answer.");
}

function columnsOf(remove: (row: CatalogueRow) => void, count: number): Column<CatalogueRow>[] {
  second.value;
  return [
    {
      id: "source",
      title: "Model",
      value: (row) => row.source,
      render: (row) => (
        <span class="machine-path" title={row.path}>
          {row.source}
        </span>
      ),
    },
    {
      id: "state",
      title: "State",
      width: "112px",
      hide: "narrow",
      render: (row) => <Badge tone={row.state === "whole" || row.state === "local" ? "ok" : row.state === "arriving" ? "info" : "warn"}>{row.state}</Badge>,
    },
    {
      id: "size",
      title: "Size",
      align: "right",
      width: "104px",
      value: (row) => row.size_bytes,
      render: (row) => (row.total_bytes ? `${formatBytes(row.size_bytes)} of ${formatBytes(row.total_bytes)}` : formatBytes(row.size_bytes)),
    },
    {
      id: "used",
      title: "Last use",
      width: "128px",
      hide: "medium",
      value: (row) => row.last_used_s,
      render: (row) =>
        row.in_use ? (
          "in use"
        ) : row.last_used_s === null ? (
          "never"
        ) : (
          <time title={formatDate(new Date(row.last_used_s * 1000))}>{formatAge(Math.max(0, wallTime(now()).getTime() - row.last_used_s * 1000))} ago</time>
        ),
    },
    { id: "deployments", title: "Deployments", hide: "narrow", render: (row) => row.deployments.join(", ") || "–" },
    {
      id: "actions",
      title: "",
      align: "right",
      width: "92px",
      render: (row) =>
        row.in_use || row.is_desired || row.state === "local" || row.state === "arriving" || count > MAX_KEPT ? null : (
          <Button size="small" kind="quiet" aria-label={`Remove ${row.source}`} onClick={() => remove(row)}>
            Remove
          </Button>
        ),
    },
  ];
}
