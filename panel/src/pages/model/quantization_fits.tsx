/** Which quantisations of a repository fit which agents. */

import { useEffect, useRef, useState } from "preact/hooks";
import { store } from "../../core/store";
import type { HubModels } from "../../types";
import { Badge } from "../../ui";
import { hostsFor, type Verdict } from "./fit";
import { AT_ONCE, verdictFrom } from "./fit_check";
import type { Draft } from "./fleet_state";
import { hubSource, projectionFor } from "./hub";
import { problemsOf, specOf } from "./values";

/** Agents that are asked, and quantisations that they are asked about: each question reads headers over the network. */
const MAX_AGENTS = 8;
const MAX_QUANTIZATIONS = 32;

type Verdicts = ReadonlyMap<string, readonly Verdict[]>;

export interface QuantizationFits {
  /** By the name of the quantisation. */
  verdicts: Verdicts;
  busy: boolean;
  /** Agents that can be asked. */
  hosts: number;
  ask: () => void;
}

/** The verdicts of the agents on every quantisation, with the settings of the form; the smallest first. */
export function useQuantizationFits(open: Draft, models: HubModels): QuantizationFits {
  const [verdicts, setVerdicts] = useState<Verdicts>(new Map());
  const [busy, setBusy] = useState(false);
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), [models]);
  const wrong = problemsOf(open.values);
  const fine = Object.fromEntries(Object.entries(open.values).filter(([path]) => !(path in wrong)));
  const hosts = hostsFor(store.agents.value.values(), specOf(fine, open.base)).filter(
    (host) => host.protocol === "paddler-trio.1",
  );
  const ask = async (): Promise<void> => {
    running.current?.abort();
    const stop = new AbortController();
    running.current = stop;
    setBusy(true);
    setVerdicts(new Map());
    const questions = [...models.quantizations]
      .sort((one, other) => (one.size_bytes ?? 0) - (other.size_bytes ?? 0))
      .slice(0, MAX_QUANTIZATIONS)
      .flatMap((each) => {
        const path = each.files[0]?.path ?? "";
        const projection = projectionFor(path, models.projections);
        const spec = specOf(
          { ...fine, model: hubSource(models, path), projection: projection ? hubSource(models, projection.path) : "none" },
          open.base,
        );
        return hosts.slice(0, MAX_AGENTS).map((host) => ({ name: each.name, host, spec }));
      });
    const work = async (): Promise<void> => {
      for (let next = questions.shift(); next !== undefined && !stop.signal.aborted; next = questions.shift()) {
        const { name, host, spec } = next;
        const verdict = await verdictFrom(host, spec, stop.signal);
        if (!stop.signal.aborted) {
          setVerdicts((known) => new Map(known).set(name, [...(known.get(name) ?? []), verdict]));
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    if (!stop.signal.aborted) {
      setBusy(false);
    }
  };
  return { verdicts, busy, hosts: hosts.length, ask: () => void ask() };
}

/** How many agents say what, and the numbers of the first. */
export function Fits({ verdicts = [] }: { verdicts?: readonly Verdict[] | undefined }) {
  const words = [...new Set(verdicts.map((each) => each.word))];
  return (
    <span class="fits">
      {words.map((word) => {
        const same = verdicts.filter((each) => each.word === word);
        return (
          <Badge key={word} tone={same[0]?.tone ?? "quiet"} title={same.map((each) => each.text).join("\n")}>
            {same.length > 1 ? `${same.length} × ` : ""}
            {word}
          </Badge>
        );
      })}
      <span class="numbers hide-narrow">{verdicts.find((each) => each.report)?.text}</span>
    </span>
  );
}
