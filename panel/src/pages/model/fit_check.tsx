/** Whether the deployment in the form fits the agents: each answers for its own machine. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { api } from "../../core/api";
import { capitalised, formatBytes, plural } from "../../core/format";
import { store } from "../../core/store";
import type { Agent } from "../../types";
import { Badge, Button, Card, Meter, Note } from "../../ui";
import { type DeviceFit, fitQuestion, type FitReport, hostsFor, optionValues, type Verdict, verdictOf, verdictOfError } from "./fit";
import { change, type Draft, draftSpec, isDirty } from "./fleet_state";
import type { Spec } from "./spec";
import { type Problems, specOf } from "./values";

/** Agents that are asked at the same time, and by one press of the button. */
export const AT_ONCE = 4;
const AT_MOST = 24;
/** A little more than the balancer waits for one answer. */
const ANSWER_MS = 110_000;
/** After the last key: a verdict costs each agent a look into the model's files. */
const QUIET_MS = 800;
const FITTING = ["model", "projection", "slots", "where", "parameters.", "extras."];

/** What the verdict depends on, as text: a verdict on something else is old. */
export function fitKey(open: Draft): string {
  return JSON.stringify(
    Object.entries(open.values).filter(([path]) => FITTING.some((each) => path === each || path.startsWith(each))),
  );
}

/** What the agents have said so far, and of what. */
interface Judgement {
  key: string;
  /** By the name of the agent. */
  verdicts: ReadonlyMap<string, Verdict>;
  busy: boolean;
}

const NOTHING: Judgement = { key: "", verdicts: new Map(), busy: false };
/** Of the form that is open, for its review, too. */
const judgement = signal<Judgement>(NOTHING);

/** Why this deployment would not be served, by agent; null while that is asked, or was not. */
export function objections(open: Draft): ReadonlyMap<string, Verdict> | null {
  const { key, verdicts, busy } = judgement.value;
  const bad = new Map([...verdicts].filter(([, verdict]) => verdict.tone === "bad"));
  return key !== fitKey(open) || (busy && bad.size === 0) ? null : bad;
}

export function FitCheck({ open, problems, asked }: { open: Draft; problems: Problems; asked: number }) {
  const { key: of, verdicts, busy } = judgement.value;
  const say = (more: Partial<Judgement>): void => {
    judgement.value = { ...judgement.peek(), ...more };
  };
  const running = useRef<AbortController | null>(null);
  const spec = specUnlessWrong(open, problems);
  const hosts = hostsFor(store.agents.value.values(), spec ?? open.base);
  const judge = async (): Promise<void> => {
    if (!spec || spec.model === "None") {
      return;
    }
    running.current?.abort();
    const stop = new AbortController();
    running.current = stop;
    say({ key: fitKey(open), verdicts: new Map(), busy: true });
    const waiting = hosts.slice(0, AT_MOST);
    const ask = async (): Promise<void> => {
      for (let host = waiting.shift(); host !== undefined && !stop.signal.aborted; host = waiting.shift()) {
        const verdict = await verdictFrom(host, spec, stop.signal);
        if (!stop.signal.aborted) {
          say({ verdicts: new Map(judgement.peek().verdicts).set(host.label, verdict) });
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, ask));
    if (!stop.signal.aborted) {
      say({ busy: false });
    }
  };
  const key = fitKey(open);
  useEffect(() => {
    if (asked > 0) {
      void judge();
    }
  }, [asked]);
  const isChanged = open.isNew || isDirty(open);
  useEffect(() => {
    if (isChanged && of !== key && hosts.length > 0) {
      const timer = setTimeout(() => void judge(), QUIET_MS);
      return () => clearTimeout(timer);
    }
    return undefined;
  }, [key, isChanged, hosts.length > 0]);
  useEffect(
    () => () => {
      running.current?.abort();
      judgement.value = NOTHING;
    },
    [],
  );
  const isOld = verdicts.size > 0 && of !== key;
  return (
    <Card
      title="Does it fit?"
      class="fit"
      actions={
        <Button size="small" busy={busy} disabled={!spec || spec.model === "None" || hosts.length === 0} onClick={judge}>
          {verdicts.size > 0 ? "Ask again" : "Ask the agents"}
        </Button>
      }
    >
      {hosts.length === 0 ? (
        <p class="muted">
          {store.agents.value.size === 0
            ? "No agent is connected, so none can be asked."
            : "No agent meets the conditions under “Where”."}
        </p>
      ) : verdicts.size === 0 && !busy ? (
        <p class="muted">
          Each agent reads the headers of the model's files and judges by what is free on its machine. Nothing is loaded.
        </p>
      ) : null}
      {verdicts.size > 0 || busy ? (
        <ul class={isOld ? "verdicts old" : "verdicts"} aria-live="polite">
          {hosts.slice(0, AT_MOST).map((host) => (
            <li key={host.id}>
              <VerdictRow name={host.label} verdict={verdicts.get(host.label) ?? null} />
            </li>
          ))}
        </ul>
      ) : null}
      {hosts.length > AT_MOST && verdicts.size > 0 ? (
        <p class="muted">{plural(hosts.length - AT_MOST, "more agent")} not asked. Name one under “Where” to ask it.</p>
      ) : null}
    </Card>
  );
}

export async function verdictFrom(host: Agent, spec: Spec, signal: AbortSignal): Promise<Verdict> {
  if (host.protocol !== "paddler-trio.1") {
    return { tone: "warn", word: "unknown", text: "An agent of Paddler judges no models.", report: null };
  }
  try {
    const limited = AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]);
    const path = `api/v2/agents/${encodeURIComponent(host.id)}/fit`;
    return verdictOf(await api.send<FitReport>("POST", path, fitQuestion(spec), limited));
  } catch (error) {
    return verdictOfError(error);
  }
}

function VerdictRow({ name, verdict }: { name: string; verdict: Verdict | null }) {
  if (verdict === null) {
    return (
      <div class="verdict">
        <b class="truncate">{name}</b>
        <span class="muted">asking …</span>
      </div>
    );
  }
  const { report } = verdict;
  return (
    <details class="verdict-box" open={verdict.tone === "bad" || Boolean(report?.hint)}>
      <summary class="verdict">
        <b class="truncate">{name}</b>
        <span class="numbers">{report ? verdict.text : ""}</span>
        <Badge tone={verdict.tone}>{verdict.word}</Badge>
      </summary>
      {report ? <Numbers report={report} /> : <p>{verdict.text}</p>}
    </details>
  );
}

function Numbers({ report }: { report: FitReport }) {
  const layers = report.n_gpu_layers < 0 ? report.n_layers : Math.min(report.n_gpu_layers, report.n_layers);
  return (
    <div class="stack">
      <p class="muted">
        {report.architecture}, {report.context_size.toLocaleString("en")} tokens
        {report.chosen.includes("context_size") ? " (chosen)" : ""} for {plural(report.slots, "slot")}
        {report.slot_context && report.slots > 1 ? (
          <>
            , <b>{report.slot_context.toLocaleString("en")} each</b>
          </>
        ) : null}
        ; trained with {report.n_ctx_train.toLocaleString("en")}; {layers} of {plural(report.n_layers, "layer")} on the GPU
        {report.chosen.includes("n_gpu_layers") ? " (chosen)" : ""}; {report.k_cache_dtype}/{report.v_cache_dtype} KV.
      </p>
      {report.devices.map((device) => (
        <DeviceMeter key={device.device} device={device} />
      ))}
      {report.problem ? <p>{report.problem}</p> : null}
      {report.hint ? <Note tone="warn">{capitalised(report.hint)}.</Note> : null}
      {report.options.length > 0 ? (
        <div class="row">
          <span>Would fit with</span>
          {report.options.map((option) => {
            const { words, values } = optionValues(option);
            return (
              <Button size="small" key={words} onClick={() => change(values)}>
                {words}
              </Button>
            );
          })}
        </div>
      ) : null}
    </div>
  );
}

function DeviceMeter({ device }: { device: DeviceFit }) {
  const segments = [
    { label: "weights", value: device.weights, color: "--c-weights" },
    { label: "KV", value: device.kv, color: "--c-kv" },
    { label: "compute", value: device.compute, color: "--c-prefill" },
    { label: "other", value: device.projection + device.draft + device.other, color: "--c-queue" },
  ]
    .filter((each) => each.value > 0)
    .map((each) => ({ ...each, text: formatBytes(each.value) }));
  const name = device.device === "host" ? "Memory of the machine" : device.device;
  return (
    <div>
      <div class="row device">
        <span>{name}</span>
        <span class="numbers">
          {formatBytes(device.needed)} of {device.available === null ? "unknown" : formatBytes(device.available)}
        </span>
      </div>
      <Meter label={name} segments={segments} max={device.available ?? device.needed} legend />
    </div>
  );
}

function specUnlessWrong(open: Draft, problems: Problems): Spec | null {
  const isWrong = Object.keys(problems).some((path) => FITTING.some((each) => path === each || path.startsWith(each)));
  if (isWrong) {
    return null;
  }
  try {
    return draftSpec(open);
  } catch {
    const fitting = Object.entries(open.values).filter(([path]) => !(path in problems));
    return specOf(Object.fromEntries(fitting), open.base);
  }
}
