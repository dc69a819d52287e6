/** Machines of agents in words: facts, files and lines of logs. Pure. */

import { formatBytes, formatDuration, formatPercent } from "../../core/format";

export interface Gpu {
  name: string;
  driver: string;
  memory_bytes: number | null;
  memory_used_bytes: number | null;
  busy: number | null;
  temperature_c: number | null;
  power_w: number | null;
}

export interface MachineFacts {
  system: string;
  kernel: string;
  cpu: string;
  cores: number | null;
  granted_cores: number | null;
  busy: number | null;
  memory_bytes: number | null;
  memory_available_bytes: number | null;
  temperature_c: number | null;
  power_w: number | null;
  version: string;
  llama_cpp: string;
  up_s: number | null;
  agent_up_s: number | null;
  gpus: Gpu[];
}

export interface Machine {
  host: string;
  name: string;
  agents: { id: string; deployment: string; phase: string | null }[];
  devices: { device: string; most_bytes: number }[];
  age_s: number | null;
  facts: MachineFacts | null;
}

/** A file or several that are one model, as an agent has it. */
export interface CachedModel {
  source: string;
  cache: string;
  state: string;
  path: string;
  size_bytes: number;
  total_bytes: number | null;
  last_used_s: number | null;
  in_use: boolean;
  is_desired: boolean;
}

/** One model in the cache of a machine, with the deployments that it is there for. */
export interface CatalogueRow extends CachedModel {
  deployments: string[];
}

export interface LogLine {
  n: number;
  time: string;
  level: "debug" | "info" | "warning" | "error";
  text: string;
}

export interface LogPage {
  lines: LogLine[];
  last: number;
  missed: number;
  life: string;
}

/** As many lines as stay on the page. */
export const MAX_SHOWN_LINES = 2_000;

/** `EPYC 9654, 96 cores (8 for the agent)`. */
export function cpuWords(facts: MachineFacts): string {
  const parts = [facts.cpu];
  if (facts.cores !== null) {
    const granted = facts.granted_cores;
    const fewer = granted !== null && granted !== facts.cores ? ` (${granted} for the agent)` : "";
    parts.push(`${facts.cores} ${facts.cores === 1 ? "core" : "cores"}${fewer}`);
  }
  return joined(parts);
}

/** `37 %, 61 °C, 412 W`: what is not known is left out. */
export function loadWords(part: Pick<Gpu, "busy" | "temperature_c" | "power_w">): string {
  return joined([
    part.busy === null ? "" : `${formatPercent(part.busy)} busy`,
    part.temperature_c === null ? "" : `${Math.round(part.temperature_c)} °C`,
    part.power_w === null ? "" : `${Math.round(part.power_w)} W`,
  ]);
}

/** `8.00 GiB of 16.0 GiB`. */
export function memoryWords(part: number | null, whole: number | null): string {
  return part === null || whole === null ? (whole === null ? "" : formatBytes(whole)) : `${formatBytes(part)} of ${formatBytes(whole)}`;
}

/** `machine 4 d 02 h, agent 12 min 00 s`. */
export function upWords(facts: MachineFacts): string {
  return joined([
    facts.up_s === null ? "" : `machine ${formatDuration(facts.up_s * 1000)}`,
    facts.agent_up_s === null ? "" : `agent ${formatDuration(facts.agent_up_s * 1000)}`,
  ]);
}

export function joined(parts: readonly string[]): string {
  return parts.filter(Boolean).join(", ");
}

/** The lines of an answer about caches: what each agent has, and what went wrong. */
export function readAnswers(text: string): { agent: string; models: CachedModel[]; problem: string | null }[] {
  const found = [];
  for (const line of text.split("\n").filter(Boolean)) {
    const { agent, answer, problem } = JSON.parse(line) as {
      agent: string;
      answer?: { models?: CachedModel[] };
      problem?: string;
    };
    if (answer !== undefined || problem !== undefined) {
      found.push({ agent, models: answer?.models ?? [], problem: problem ?? null });
    }
  }
  return found;
}

/** Each file once, though all deployments of a machine list it; the largest first. */
export function catalogue(
  answers: readonly { agent: string; models: readonly CachedModel[] }[],
  deploymentOf: (agent: string) => string,
): CatalogueRow[] {
  const rows = new Map<string, CatalogueRow>();
  for (const { agent, models } of answers) {
    for (const model of models) {
      const row = rows.get(model.path) ?? { ...model, deployments: [] };
      row.in_use ||= model.in_use;
      row.is_desired ||= model.is_desired;
      if (model.is_desired || model.state === "local") {
        row.deployments.push(deploymentOf(agent));
      }
      rows.set(model.path, row);
    }
  }
  return [...rows.values()].sort((a, b) => b.size_bytes - a.size_bytes);
}

/** Lines that are known and newer ones; another life of the agent begins anew. */
export function withPage(known: readonly LogLine[], page: LogPage, isSameLife: boolean): LogLine[] {
  if (!isSameLife) {
    return page.lines.slice(-MAX_SHOWN_LINES);
  }
  const last = known.at(-1)?.n ?? 0;
  return [...known, ...page.lines.filter((line) => line.n > last)].slice(-MAX_SHOWN_LINES);
}
