/** What stands in the form, by the paths of fields: read from a deployment, checked, and put back into it. */

import { shownAdapters, takenAdapters } from "./adapters";
import { FIELDS, fieldAt } from "./fields";
import type { FieldSpec } from "./field_spec";
import { shownPresets, takenPresets } from "./presets";
import { parseSource, sourceText } from "./source";
import { type Json, type ModelSource, type Spec, isSame, valueAt, withValue } from "./spec";

/** Texts as they were typed; null is a marker that stays the template's own. */
export type Value = string | boolean | null;
export type Values = Readonly<Record<string, Value>>;
/** A sentence for each field that has one. */
export type Problems = Readonly<Record<string, string>>;

const WHOLE = /^[+-]?\d{1,20}$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?$/i;
const LARGEST_SINGLE = 3.4028234663852886e38;
const RANGE = /^(\d{1,9})\.\.(\d{1,9})$/;
const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;
const ALIAS = /^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$/;
const LABEL = /^[\w./-]{1,63}$/;
const MAX_TEMPLATE_CHARS = 256 * 1024;

/** Every field of a deployment as the form shows it. */
export function valuesOf(spec: Spec): Values {
  return Object.fromEntries(FIELDS.map((field) => [field.path, shown(field, valueAt(spec, field.path))]));
}

/** `base` with what differs in the form; an Error if a field has a problem. */
export function specOf(values: Values, base: Spec): Spec {
  const before = valuesOf(base);
  let spec: Json = base;
  for (const field of FIELDS) {
    const value = values[field.path];
    if (value !== undefined && value !== before[field.path]) {
      spec = withValue(spec, field.path, taken(field, value));
    }
  }
  return spec as Spec;
}

/** Paths of the fields that differ. */
export function changedPaths(values: Values, before: Values): string[] {
  return FIELDS.map((field) => field.path).filter((path) => values[path] !== before[path]);
}

/** The changes that were made to `base`, made to `now` instead; and those of them that somebody else made, too. */
export function rebased(values: Values, base: Spec, now: Spec): { values: Values; collisions: string[] } {
  const before = valuesOf(base);
  const after = valuesOf(now);
  const mine = changedPaths(values, before);
  const collisions = mine.filter((path) => after[path] !== before[path] && after[path] !== values[path]);
  return {
    values: { ...after, ...Object.fromEntries(mine.map((path) => [path, values[path] ?? null])) },
    collisions,
  };
}

/** What is wrong, by path. */
export function problemsOf(values: Values): Problems {
  const found: Record<string, string> = {};
  for (const field of FIELDS) {
    try {
      taken(field, values[field.path] ?? null);
    } catch (error) {
      found[field.path] = error instanceof Error ? error.message : String(error);
    }
  }
  return found;
}

/** What can be meant, but seldom is; null if nothing is to be said, or there is a problem. */
export function warningOf(field: FieldSpec, value: Value): string | null {
  const [low, high] = field.usual ?? [];
  if (low === undefined || high === undefined || typeof value !== "string" || !NUMBER.test(value.trim())) {
    return null;
  }
  const number = Number(value);
  const isFine = (number >= low && number <= high) || (field.path === "parameters.context_size" && number === 0);
  return isFine ? null : `Unusual: most are ${spoken(low)} to ${spoken(high)}.`;
}

/** Why a deployment cannot be called this; null if it can. */
export function nameProblem(name: string, taken_: readonly string[]): string | null {
  if (!NAME.test(name)) {
    return "1 to 63 of a–z, 0–9, “.”, “_” and “-”, the first a letter or a digit.";
  }
  return taken_.includes(name) ? `There is a deployment ${name} already.` : null;
}

function shown(field: FieldSpec, raw: Json | undefined): Value {
  switch (field.kind) {
    case "flag":
      return raw === true;
    case "switch":
      return raw === undefined ? "" : raw === true ? "yes" : "no";
    case "marker":
      return typeof raw === "string" ? raw : null;
    case "lines":
      return Array.isArray(raw) ? raw.join("\n") : "";
    case "parts":
      return Array.isArray(raw) ? raw.join(",") : "";
    case "presets":
      return shownPresets(raw);
    case "adapters":
      return shownAdapters(raw);
    case "source":
      return sourceText((raw ?? "None") as ModelSource);
    case "replicas":
      return String(raw ?? "all");
    default:
      return raw === undefined ? "" : String(raw);
  }
}

/** The member as it is sent; undefined for none. An Error says what is wrong. */
function taken(field: FieldSpec, value: Value): Json | undefined {
  if (field.kind === "flag") {
    return field.path.startsWith("extras.") ? value === true || undefined : value === true;
  }
  if (field.kind === "marker") {
    return value === null ? undefined : short(String(value), field.high ?? 256);
  }
  const text = typeof value === "string" ? value : "";
  const isBlank = text.trim() === "";
  if (isBlank && field.empty !== undefined) {
    return undefined;
  }
  switch (field.kind) {
    case "integer":
      return integer(text.trim(), field);
    case "number":
      return number(text.trim(), field);
    case "switch":
      return text === "yes";
    case "choice":
      if (!field.options?.includes(text)) {
        throw new Error(`Choose one of ${field.options?.join(", ")}.`);
      }
      return text;
    case "text":
      return short(text.trim(), field.high ?? 4096);
    case "lines":
      return lines(text, field);
    case "parts":
      return parts(text, field);
    case "replicas":
      return replicas(text.trim(), field.high ?? 4096);
    case "presets":
      return takenPresets(text);
    case "adapters":
      return takenAdapters(text);
    case "source":
      return source(text);
    case "template":
      if (text.length > MAX_TEMPLATE_CHARS) {
        throw new Error(`The template has ${spoken(text.length)} characters, the limit is ${spoken(MAX_TEMPLATE_CHARS)}.`);
      }
      return text;
  }
}

function integer(text: string, field: FieldSpec): number {
  if (!WHOLE.test(text)) {
    throw new Error(text === "" ? `Give a whole number${limits(field)}.` : `“${text}” is no whole number.`);
  }
  return within(Number(text), field);
}

function number(text: string, field: FieldSpec): number {
  if (!NUMBER.test(text)) {
    throw new Error(text === "" ? `Give a number${limits(field)}.` : `“${text}” is no number: write 0.8, for example.`);
  }
  return within(Number(text), field);
}

function within(value: number, field: FieldSpec): number {
  const isBelow = field.low !== undefined && value < field.low;
  const isAbove = value > (field.high ?? LARGEST_SINGLE) || value < -LARGEST_SINGLE;
  if (isBelow || isAbove) {
    throw new Error(`${spoken(value)} is out of range: it must be${limits(field) || " a 32-bit number"}.`);
  }
  return value;
}

function limits({ low, high, unit }: FieldSpec): string {
  const units = unit ? ` ${unit}` : "";
  if (low !== undefined && high !== undefined) {
    return ` ${spoken(low)} to ${spoken(high)}${units}`;
  }
  return low !== undefined ? ` ${spoken(low)}${units} or more` : "";
}

/** The range of a field as its help has it; empty if it takes every number. */
export function rangeOf(field: FieldSpec): string {
  if (field.kind !== "integer" && field.kind !== "number") {
    return "";
  }
  const [low, high] = field.usual ?? [field.low, field.high];
  if (low === undefined) {
    return "";
  }
  const isEnd = high === undefined || high >= 2 ** 31 - 1;
  return isEnd ? `≥ ${spoken(low)}` : `${spoken(low)} … ${spoken(high)}`;
}

function short(text: string, limit: number): string {
  if (text.length > limit || text.includes("\0")) {
    throw new Error(`A text of ${spoken(text.length)} characters: ${spoken(limit)} at most, and no NUL.`);
  }
  return text;
}

function lines(text: string, field: FieldSpec): string[] {
  const entries = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  counted(entries.length, field);
  for (const entry of entries) {
    const problem = entryProblem(field.path, entry);
    if (problem) {
      throw new Error(problem);
    }
  }
  return entries;
}

function entryProblem(path: string, entry: string): string | null {
  if (path === "aliases") {
    return ALIAS.test(entry) && entry !== "default"
      ? null
      : `“${entry}” cannot be an alias: 1 to 128 letters, digits and ._:/@+-, the first one a letter or digit.`;
  }
  if (path === "where") {
    const equals = entry.indexOf("=");
    if (equals < 0) {
      return `“${entry}” is no condition: write label=value or agent=NAME.`;
    }
    const [key, value] = [entry.slice(0, equals), entry.slice(equals + 1)];
    const isFine = key === "agent" ? value.length >= 1 && value.length <= 128 : LABEL.test(key) && LABEL.test(value);
    return isFine ? null : `“${entry}”: a label has 1 to 63 of A–Z, a–z, 0–9, “.”, “_”, “/” and “-”.`;
  }
  return entry.length <= 4096 ? null : "An entry has 4,096 characters at most.";
}

function parts(text: string, field: FieldSpec): number[] {
  const numbers = text.split(",").map((part) => part.trim());
  counted(numbers.length, field);
  return numbers.map((part) => {
    if (!NUMBER.test(part) || Number(part) < 0) {
      throw new Error(`“${part}”: write numbers of 0 or more with commas, such as 3,1.`);
    }
    return Number(part);
  });
}

function counted(count: number, field: FieldSpec): void {
  if (field.high !== undefined && count > field.high) {
    throw new Error(`${spoken(count)} entries, the limit is ${field.high}.`);
  }
}

function replicas(text: string, most: number): Json {
  if (text === "all") {
    return text;
  }
  const range = RANGE.exec(text);
  const [low, high] = range ? [Number(range[1]), Number(range[2])] : [Number(text), Number(text)];
  if (!range && !/^\d{1,9}$/.test(text)) {
    throw new Error("Write all, a number, or min..max such as 1..3.");
  }
  if (low > high) {
    throw new Error(`${text}: the first number is larger.`);
  }
  if (high > most) {
    throw new Error(`${spoken(high)} is too many: the limit is ${spoken(most)}.`);
  }
  return range ? text : low;
}

function source(text: string): Json {
  const found = parseSource(text);
  if ("repository" in found) {
    throw new Error(`Choose one of the files of ${found.repository.repo_id}.`);
  }
  return found.model as Json;
}

function spoken(value: number): string {
  return Number.isInteger(value) ? value.toLocaleString("en") : String(value);
}

/** Whether two deployments are the same but for the order of members. */
export function isEqual(one: Spec, other: Spec): boolean {
  return isSame(one, other);
}

/** The field that a path inside of a deployment belongs to: `extras.engine.lora[0]` is an entry of a list. */
export function fieldOf(steps: readonly (string | number)[]): FieldSpec | undefined {
  for (let count = steps.length; count > 0; count -= 1) {
    const field = fieldAt(steps.slice(0, count).join("."));
    if (field) {
      return field;
    }
  }
  return undefined;
}
