/** The adapters of a deployment as lines of text: name, scale if it is not 1, and source. */

import { parseSource, sourceText } from "./source";
import { type Json, type ModelSource, isObject } from "./spec";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?$/i;
const MOST = 64;
const LARGEST_SCALE = 100;

/** One adapter a line. */
export function shownAdapters(raw: Json | undefined): string {
  return (Array.isArray(raw) ? raw : [])
    .filter(isObject)
    .map((each) => {
      const scale = each["scale"] === undefined || each["scale"] === 1 ? [] : [String(each["scale"])];
      return [String(each["name"]), ...scale, sourceText((each["source"] ?? "None") as ModelSource)].join(" ");
    })
    .join("\n");
}

/** The adapters as they are sent; an Error says what is wrong with one. */
export function takenAdapters(text: string): Json[] {
  const found = text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean)
    .map(adapter);
  if (found.length > MOST) {
    throw new Error(`${found.length} adapters, the limit is ${MOST}.`);
  }
  const names = new Set<string>();
  for (const { name } of found) {
    if (names.has(name)) {
      throw new Error(`Two adapters are called ${name}.`);
    }
    names.add(name);
  }
  return found;
}

function adapter(line: string): { name: string; source: ModelSource; scale: number } {
  const [name = "", second = ""] = line.split(/\s+/);
  if (!NAME.test(name)) {
    throw new Error(`“${name.slice(0, 80)}” cannot name an adapter: 1 to 128 letters, digits and ._:/@+-.`);
  }
  let rest = line.slice(name.length).trim();
  let scale = 1;
  if (NUMBER.test(second) && rest !== second) {
    scale = Number(second);
    rest = rest.slice(second.length).trim();
  }
  if (!(Math.abs(scale) <= LARGEST_SCALE)) {
    throw new Error(`${name}: the scale ${second} is out of range: it must be -${LARGEST_SCALE} to ${LARGEST_SCALE}.`);
  }
  const reference = parseSource(rest);
  if (!("model" in reference) || reference.model === "None") {
    throw new Error(`${name}: name one file, such as hf:org/repo/${name}.gguf.`);
  }
  return { name, source: reference.model, scale };
}
