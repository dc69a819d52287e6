/** Two states compared, in words. */

import { newSpec } from "./defaults";
import { FIELDS } from "./fields";
import type { FieldSpec } from "./field_spec";
import { sourceText } from "./source";
import {
  CHANGE_CLASSES,
  type ChangeClass,
  type Json,
  type ModelSource,
  type Spec,
  type State,
  isObject,
  isSame,
  valueAt,
} from "./spec";

export interface FieldChange {
  path: string;
  label: string;
  before: string;
  after: string;
  /** Of the template: its lines. */
  lines?: readonly LineChange[];
}

export interface LineChange {
  kind: "same" | "gone" | "new";
  text: string;
  /** Of the newer text, or of the older one for a line that is gone. */
  number: number;
}

export interface DeploymentDiff {
  deployment: string;
  kind: "added" | "removed" | "changed";
  cost: ChangeClass | null;
  fields: readonly FieldChange[];
}

const MAX_SHOWN_CHARS = 300;
/** Lines of each side that are compared one by one; longer ones are shown as gone and new. */
const MAX_LINES = 600;
const CONTEXT_LINES = 2;

/** Every deployment that differs: in the newer order, then those that are gone. Of a new one, what is no default. */
export function stateDiff(before: State, after: State): DeploymentDiff[] {
  const old = new Map(before.deployments.map((spec) => [spec.name, spec]));
  const names = new Set(after.deployments.map((spec) => spec.name));
  const found: DeploymentDiff[] = [];
  for (const spec of after.deployments) {
    const known = old.get(spec.name);
    if (known === undefined) {
      found.push({ deployment: spec.name, kind: "added", cost: null, fields: specDiff(newSpec(spec.name), spec) });
    } else if (!isSame(known, spec)) {
      found.push({ deployment: spec.name, kind: "changed", cost: costOf(known, spec), fields: specDiff(known, spec) });
    }
  }
  for (const spec of before.deployments) {
    if (!names.has(spec.name)) {
      found.push({ deployment: spec.name, kind: "removed", cost: null, fields: [] });
    }
  }
  return found;
}

/** Every field that differs, those of the form first. */
export function specDiff(before: Spec, after: Spec): FieldChange[] {
  const found: FieldChange[] = [];
  for (const field of FIELDS) {
    const old = valueAt(before, field.path);
    const now = valueAt(after, field.path);
    if (inWords(field, old) !== inWords(field, now) || !isSame(old, now)) {
      found.push({
        path: field.path,
        label: field.label,
        before: inWords(field, old),
        after: inWords(field, now),
        ...(field.kind === "template" ? { lines: lineDiff(textOf(old), textOf(now)) } : {}),
      });
    }
  }
  const known = new Set(FIELDS.map((field) => field.path));
  for (const path of leaves(before, after)) {
    if (!known.has(path) && !isSame(valueAt(before, path), valueAt(after, path))) {
      const [old, now] = [valueAt(before, path), valueAt(after, path)];
      found.push({ path, label: path, before: plain(old), after: plain(now) });
    }
  }
  return found.filter((each) => each.before !== each.after || each.lines !== undefined);
}

/** The class of the dearest field, as the balancer has it. */
export function costOf(before: Spec, after: Spec): ChangeClass {
  let dearest = 0;
  for (const field of FIELDS) {
    if (!isSame(valueAt(before, field.path), valueAt(after, field.path))) {
      dearest = Math.max(dearest, CHANGE_CLASSES.indexOf(costOfField(field, before, after)));
    }
  }
  return CHANGE_CLASSES[dearest] ?? "none";
}

function costOfField(field: FieldSpec, before: Spec, after: Spec): ChangeClass {
  if (field.path === "parameters.pooling_type") {
    const embeds = [before, after].some((spec) => valueAt(spec, "parameters.enable_embeddings") === true);
    return embeds ? "context" : "in_place";
  }
  return field.cost;
}

/** A value as people read it. */
export function inWords(field: FieldSpec, value: Json | undefined): string {
  if (field.kind === "source") {
    return sourceText((value ?? "None") as ModelSource);
  }
  if (field.kind === "flag") {
    return value === true ? "yes" : "no";
  }
  if (field.kind === "template") {
    const text = textOf(value);
    const count = text.split("\n").length;
    return text === "" ? "the model's own" : `${text.length.toLocaleString("en")} characters in ${count} lines`;
  }
  if (field.kind === "marker") {
    return value === undefined ? "the template's own" : value === "" ? "no such section" : `“${plain(value)}”`;
  }
  if (value === undefined || (Array.isArray(value) && value.length === 0)) {
    return field.kind === "replicas" ? "all" : (field.empty ?? "–");
  }
  if (field.kind === "switch") {
    return value === true ? "yes" : "no";
  }
  const text = typeof value === "number" && Number.isInteger(value) ? value.toLocaleString("en") : plain(value);
  return field.unit && typeof value === "number" ? `${text} ${field.unit}` : text;
}

/** The lines of two texts with what is gone and what is new; long equal stretches are left out. */
export function lineDiff(before: string, after: string): LineChange[] {
  const old = before === "" ? [] : before.split("\n");
  const now = after === "" ? [] : after.split("\n");
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) {
    head += 1;
  }
  let tail = 0;
  while (
    tail < old.length - head &&
    tail < now.length - head &&
    old[old.length - 1 - tail] === now[now.length - 1 - tail]
  ) {
    tail += 1;
  }
  const middle = changedLines(old.slice(head, old.length - tail), now.slice(head, now.length - tail), head);
  const lead = now.slice(Math.max(0, head - CONTEXT_LINES), head);
  const rest = now.slice(now.length - tail, now.length - tail + CONTEXT_LINES);
  const same = (text: string, number: number): LineChange => ({ kind: "same", text, number });
  return [
    ...lead.map((text, place) => same(text, head - lead.length + place + 1)),
    ...middle,
    ...rest.map((text, place) => same(text, now.length - tail + place + 1)),
  ];
}

function changedLines(old: readonly string[], now: readonly string[], start: number): LineChange[] {
  const gone = (place: number): LineChange => ({ kind: "gone", text: old[place] ?? "", number: start + place + 1 });
  const fresh = (place: number): LineChange => ({ kind: "new", text: now[place] ?? "", number: start + place + 1 });
  if (old.length > MAX_LINES || now.length > MAX_LINES) {
    return [...old.map((_, place) => gone(place)), ...now.map((_, place) => fresh(place))];
  }
  // common[i][j]: the longest common subsequence of what follows old line i and new line j
  const width = now.length + 1;
  const common = new Uint16Array((old.length + 1) * width);
  const at = (i: number, j: number): number => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const found: LineChange[] = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push({ kind: "same", text: now[j] ?? "", number: start + j + 1 });
      i += 1;
      j += 1;
    } else if (i < old.length && (j === now.length || at(i + 1, j) >= at(i, j + 1))) {
      found.push(gone(i));
      i += 1;
    } else {
      found.push(fresh(j));
      j += 1;
    }
  }
  return found;
}

function leaves(...specs: Json[]): string[] {
  const found = new Set<string>();
  const walk = (value: Json | undefined, path: string): void => {
    if (isObject(value) && !["model", "projection"].includes(path)) {
      for (const [name, inner] of Object.entries(value)) {
        walk(inner, path ? `${path}.${name}` : name);
      }
    } else if (path !== "name") {
      found.add(path);
    }
  };
  for (const spec of specs) {
    walk(spec, "");
  }
  return [...found];
}

function plain(value: Json | undefined): string {
  const text =
    typeof value === "string" ? value : Array.isArray(value) ? value.map(plain).join(", ") : JSON.stringify(value ?? null);
  return text.length > MAX_SHOWN_CHARS ? `${text.slice(0, MAX_SHOWN_CHARS)}…` : text;
}

function textOf(value: Json | undefined): string {
  return typeof value === "string" ? value : "";
}
