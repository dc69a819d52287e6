/** What the page knows of the desired fleet, and what is being edited; both outlive the page. */

import { effect, signal } from "@preact/signals";
import { api } from "../../core/api";
import { whenAnotherSignsIn } from "../../core/owner";
import { store } from "../../core/store";
import type { FleetDeployment, Rollout } from "../../types";
import { newSpec } from "./defaults";
import type { Refusal } from "./refusal";
import type { DeploymentChange, Spec, State, StoredRevision } from "./spec";
import { changedPaths, type Problems, specOf, type Value, type Values, valuesOf } from "./values";

export interface FleetNow {
  revision: StoredRevision;
  deployments: FleetDeployment[];
}

/** One deployment in the form. */
export interface Draft {
  name: string;
  isNew: boolean;
  /** What it was before, and the revision that had it. */
  base: Spec;
  from: StoredRevision;
  values: Values;
  /** What the balancer refused, by path; until the field is changed. */
  refused: Problems;
}

/** Null until it was asked for. */
export const fleetNow = signal<FleetNow | null>(null);
export const fleetError = signal<unknown>(null);
export const history = signal<readonly StoredRevision[] | null>(null);
/** What was asked for when the feed had no rollouts yet. */
export const askedRollouts = signal<readonly Rollout[]>([]);
export const draft = signal<Draft | null>(null);

whenAnotherSignsIn(() => {
  draft.value = null;
});

let loads = 0;

/** What is in force now; null if it cannot be had. Of several that are under way, the last one is shown. */
export async function loadFleet(): Promise<FleetNow | null> {
  loads += 1;
  const turn = loads;
  try {
    const [found, { rollouts }] = await Promise.all([
      api.get<FleetNow>("api/v2/fleet"),
      api.get<{ rollouts: Rollout[] }>("api/v2/rollout"),
    ]);
    if (turn === loads) {
      fleetError.value = null;
      askedRollouts.value = rollouts;
      fleetNow.value = found;
    }
    return found;
  } catch (error) {
    fleetError.value = error;
    return null;
  }
}

export async function loadHistory(): Promise<void> {
  history.value = (await api.get<{ revisions: StoredRevision[] }>("api/v2/fleet/history")).revisions;
}

/** Begin to edit; a draft of the same deployment that has changes goes on. */
export function edit(name: string): void {
  const now = fleetNow.peek();
  const spec = now?.revision.state.deployments.find((each) => each.name === name);
  const open = draft.peek();
  if (!now || !spec || (open && open.name === name && !open.isNew && isDirty(open))) {
    return;
  }
  draft.value = { name, isNew: false, base: spec, from: now.revision, values: valuesOf(spec), refused: {} };
}

/** Begin a deployment that there is not yet. */
export function begin(name: string): void {
  const now = fleetNow.peek();
  const open = draft.peek();
  if (!now || open?.isNew) {
    return;
  }
  const base = newSpec(name);
  draft.value = { name, isNew: true, base, from: now.revision, values: valuesOf(base), refused: {} };
}

/** Put values into fields; what the balancer said of them is over. */
export function change(values: Record<string, Value>): void {
  const open = draft.peek();
  if (open) {
    const refused = Object.fromEntries(Object.entries(open.refused).filter(([path]) => !(path in values)));
    draft.value = { ...open, values: { ...open.values, ...values }, refused };
  }
}

export function rename(name: string): void {
  const open = draft.peek();
  if (open?.isNew) {
    const { name: _, ...refused } = open.refused as Record<string, string>;
    draft.value = { ...open, name, base: { ...open.base, name }, refused };
  }
}

/**
 * Mark the field that the balancer refused; false if it named none.
 *
 * Also where it stands in another deployment: that one was accepted before, so it is this one's value that clashes with it.
 */
export function markRefusal(refusal: Refusal): boolean {
  const open = draft.peek();
  if (!open || refusal.deployment === null || refusal.field === null) {
    return false;
  }
  draft.value = { ...open, refused: { ...open.refused, [refusal.field]: refusal.text } };
  return true;
}

export function isDirty(open: Draft): boolean {
  return changes(open).length > 0;
}

export function changes(open: Draft): string[] {
  return changedPaths(open.values, valuesOf(open.base));
}

/** The deployment as the form has it; an Error if a field has a problem. */
export function draftSpec(open: Draft): Spec {
  return specOf(open.values, open.base);
}

/** `state` with a deployment in the place of the one of its name, or as the last one. */
export function withSpec(state: State, spec: Spec): State {
  const known = state.deployments.some((each) => each.name === spec.name);
  return {
    deployments: known
      ? state.deployments.map((each) => (each.name === spec.name ? spec : each))
      : [...state.deployments, spec],
  };
}

export function dryRun(state: State): Promise<{ changes: DeploymentChange[] }> {
  return api.send("PUT", "api/v2/fleet?dry_run=true", { state });
}

export function apply(state: State, note: string, expected_revision: number): Promise<StoredRevision> {
  return api.send("PUT", "api/v2/fleet", { state, note, expected_revision });
}

export function undoTo(to: number, expected_revision: number): Promise<StoredRevision> {
  return api.send("POST", "api/v2/fleet/undo", { to, expected_revision });
}

/** What could not be loaded is loaded when the stream is back: an error that is over is none. */
effect(() => {
  if (store.connection.value.state === "live" && fleetError.peek() !== null) {
    void loadFleet();
  }
});
