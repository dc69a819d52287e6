/** Does a deployment fit an agent: what is asked, and what the answer comes to. */

import { ApiError } from "../../core/api";
import { formatBytes } from "../../core/format";
import type { Agent } from "../../types";
import { defaultParameters } from "./defaults";
import { type Json, type Spec, isObject, valueAt } from "./spec";

export interface DeviceFit {
  device: string;
  weights: number;
  kv: number;
  compute: number;
  projection: number;
  draft: number;
  other: number;
  needed: number;
  total: number | null;
  free_now: number | null;
  free_after: number | null;
  reserve: number;
  limit: number | null;
  available: number | null;
}

export interface FitOption {
  changes: string[];
  context_size: number;
  slots: number;
  n_gpu_layers: number;
  k_cache_dtype: string;
  v_cache_dtype: string;
}

export interface FitReport {
  fits: boolean | null;
  problem: string | null;
  architecture: string;
  file_bytes: number;
  context_size: number;
  n_ctx_train: number;
  slots: number;
  n_gpu_layers: number;
  n_layers: number;
  k_cache_dtype: string;
  v_cache_dtype: string;
  chosen: string[];
  devices: DeviceFit[];
  options: FitOption[];
  /** The most tokens that one slot may have. */
  slot_context?: number | null;
  /** Why a GPU of the machine would compute nothing; absent if one does, or there is none. */
  hint?: string;
}

export interface Verdict {
  tone: "ok" | "warn" | "bad";
  word: string;
  /** The numbers, or why there are none. */
  text: string;
  report: FitReport | null;
}

/** A fit that leaves less than this part of what a model may take is shown in amber. */
const TIGHT = 0.1;
const WOULD_NOT_LOAD = 422;

/** The body of the question about a deployment. */
export function fitQuestion(spec: Spec): Json {
  const parameters = spec["parameters"];
  return {
    state: {
      chat_template_override: null,
      inference_parameters: { ...defaultParameters(), ...(isObject(parameters) ? parameters : {}) },
      model: spec.model,
      multimodal_projection: spec["projection"] ?? "None",
      use_chat_template_override: false,
    },
    extras: spec["extras"] ?? {},
    slots: valueAt(spec, "slots") ?? null,
  };
}

/** Agents on which a deployment may run, one of each process; the first links of their hosts. */
export function hostsFor(agents: Iterable<Agent>, spec: Spec): Agent[] {
  const conditions = Array.isArray(spec["where"]) ? spec["where"].map(String) : [];
  const meets = (agent: Agent, condition: string): boolean => {
    const equals = condition.indexOf("=");
    const [key, value] = [condition.slice(0, equals), condition.slice(equals + 1)];
    return key === "agent" ? value === agent.name || value === agent.id : agent.labels[key] === value;
  };
  return [...agents]
    .filter((agent) => agent.host === agent.id && conditions.every((each) => meets(agent, each)))
    .sort((one, other) => one.label.localeCompare(other.label, "en", { numeric: true }));
}

/** What an answer comes to. */
export function verdictOf(report: FitReport): Verdict {
  const tightest = tightestDevice(report.devices);
  const numbers = tightest ? numbersOf(tightest) : "";
  if (report.fits === null) {
    return { tone: "warn", word: "unknown", text: report.problem ?? numbers, report };
  }
  if (!report.fits) {
    return { tone: "bad", word: "does not fit", text: numbers || (report.problem ?? ""), report };
  }
  const isTight =
    tightest !== null && tightest.available !== null && tightest.available - tightest.needed < tightest.available * TIGHT;
  return isTight
    ? { tone: "warn", word: "tight", text: numbers, report }
    : { tone: "ok", word: "fits", text: numbers, report };
}

/** What a question that was not answered comes to. */
export function verdictOfError(error: unknown): Verdict {
  const isUnloadable = error instanceof ApiError && error.status === WOULD_NOT_LOAD;
  const text = error instanceof Error ? error.message : String(error);
  return isUnloadable
    ? { tone: "bad", word: "does not load", text, report: null }
    : { tone: "warn", word: "unknown", text, report: null };
}

/** The device with the least left, in parts of what a model may take there. */
export function tightestDevice(devices: readonly DeviceFit[]): DeviceFit | null {
  const used = (each: DeviceFit): number => (each.available === null ? -1 : each.needed / Math.max(1, each.available));
  return devices
    .filter((each) => each.needed > 0)
    .reduce<DeviceFit | null>((most, each) => (most === null || used(each) > used(most) ? each : most), null);
}

function numbersOf(device: DeviceFit): string {
  const where = device.device === "host" ? "memory" : device.device;
  return device.available === null
    ? `needs ${formatBytes(device.needed)} of ${where}`
    : `${formatBytes(device.needed)} of ${formatBytes(device.available)} (${where})`;
}

/** What the form is set to for an option, and the words of the button. */
export function optionValues(option: FitOption): { words: string; values: Record<string, string | boolean> } {
  const values: Record<string, string | boolean> = {};
  const words: string[] = [];
  for (const change of option.changes) {
    if (change === "context-size") {
      values["parameters.context_size"] = String(option.context_size);
      values["extras.auto.context_size"] = false;
      words.push(`context ${option.context_size.toLocaleString("en")}`);
    } else if (change === "slots") {
      values["slots"] = String(option.slots);
      words.push(option.slots === 1 ? "1 slot" : `${option.slots} slots`);
    } else if (change === "n-gpu-layers") {
      values["parameters.n_gpu_layers"] = String(option.n_gpu_layers);
      values["extras.auto.n_gpu_layers"] = false;
      words.push(`${option.n_gpu_layers} layers on the GPU`);
    } else {
      values["parameters.k_cache_dtype"] = option.k_cache_dtype;
      values["parameters.v_cache_dtype"] = option.v_cache_dtype;
      words.push(`${option.k_cache_dtype}/${option.v_cache_dtype} KV`);
    }
  }
  return { words: words.join(", "), values };
}
