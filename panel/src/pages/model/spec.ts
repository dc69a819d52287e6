/** A deployment as `api/v2/fleet` has it. Members that this page has no field for are kept as they are. */

export type ModelSource =
  | "None"
  | { LocalToAgent: string }
  | { Url: { url: string } }
  | { HuggingFace: { filename: string; repo_id: string; revision: string } };

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export interface Spec {
  name: string;
  model: ModelSource;
  [member: string]: Json;
}

export interface State {
  deployments: Spec[];
}

/** A state that was accepted; `api/v2/fleet/history` has the newest first. */
export interface StoredRevision {
  revision: number;
  author: string;
  time: string;
  note: string;
  /** Deployments whose rollout had failed when the next revision came. */
  failed: string[];
  state: State;
}

/** What `PUT api/v2/fleet?dry_run=true` says of one deployment. */
export interface DeploymentChange {
  deployment: string;
  change: ChangeClass | "added" | "removed";
  fields: string[];
}

/** What a change costs the agents, the cheapest first. */
export const CHANGE_CLASSES = ["none", "in_place", "context", "weights"] as const;
export type ChangeClass = (typeof CHANGE_CLASSES)[number];

export const DEFAULT = "default";

/** What stands at `parameters.context_size`; undefined if nothing does, or null. */
export function valueAt(spec: Json, path: string): Json | undefined {
  let value: Json | undefined = spec;
  for (const name of path.split(".")) {
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      return undefined;
    }
    value = value[name];
  }
  return value ?? undefined;
}

/** `spec` with `value` at `path`; undefined takes the member away, and objects that are empty without it. */
export function withValue(spec: Json, path: string, value: Json | undefined): Json {
  const [name = "", ...rest] = path.split(".");
  const before = isObject(spec) ? spec : {};
  const inner = rest.length === 0 ? value : withValue(before[name] ?? {}, rest.join("."), value);
  const after = { ...before };
  const isEmpty = rest.length > 0 && isObject(inner) && Object.keys(inner).length === 0;
  if (inner === undefined || isEmpty) {
    delete after[name];
  } else {
    after[name] = inner;
  }
  return after;
}

export function isObject(value: Json | undefined): value is { [name: string]: Json } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Equal, whatever the order of their members; a member that is null is as one that is not there. */
export function isSame(one: Json | undefined, other: Json | undefined): boolean {
  const a = one ?? null;
  const b = other ?? null;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((each, place) => isSame(each, b[place]));
  }
  if (isObject(a) && isObject(b)) {
    return [...new Set([...Object.keys(a), ...Object.keys(b)])].every((name) => isSame(a[name], b[name]));
  }
  return a === b;
}
