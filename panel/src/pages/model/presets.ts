/** The presets of a deployment as the form has them: what is edited most in fields of its own, the rest as JSON. */

import { isObject, type Json } from "./spec";

export interface PresetDraft {
  name: string;
  system: string;
  /** `before` or `instead`. */
  place: string;
  /** Empty: as the request has it. */
  thinking: "" | "yes" | "no";
  /** JSON of all other members. */
  others: string;
}

const NAME = /^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$/;
const MOST = 64;
const MAX_SYSTEM_CHARS = 65_536;

export const NEW_PRESET: PresetDraft = { name: "", system: "", place: "before", thinking: "", others: "" };

/** Presets as text, so that two states of the form are compared as such. */
export function shownPresets(raw: Json | undefined): string {
  const drafts = (Array.isArray(raw) ? raw : []).filter(isObject).map(draftOf);
  return drafts.length === 0 ? "" : JSON.stringify(drafts);
}

export function draftsIn(text: string): PresetDraft[] {
  return text === "" ? [] : (JSON.parse(text) as PresetDraft[]);
}

export function textOfDrafts(drafts: readonly PresetDraft[]): string {
  return drafts.length === 0 ? "" : JSON.stringify(drafts);
}

/** The presets as they are sent; an Error says what is wrong with one. */
export function takenPresets(text: string): Json {
  const drafts = draftsIn(text);
  if (drafts.length > MOST) {
    throw new Error(`${drafts.length} presets, the limit is ${MOST}.`);
  }
  const names = drafts.map((draft) => draft.name);
  return drafts.map((draft, place) => {
    if (names.indexOf(draft.name) !== place) {
      throw new Error(`Two presets are called ${draft.name}.`);
    }
    return presetOf(draft);
  });
}

function draftOf(preset: { [name: string]: Json }): PresetDraft {
  const { name, system, system_place, thinking, ...others } = preset;
  return {
    name: typeof name === "string" ? name : "",
    system: typeof system === "string" ? system : "",
    place: typeof system_place === "string" ? system_place : "before",
    thinking: thinking === true ? "yes" : thinking === false ? "no" : "",
    others: Object.keys(others).length === 0 ? "" : JSON.stringify(others, null, 2),
  };
}

function presetOf(draft: PresetDraft): Json {
  const name = draft.name.trim();
  if (!NAME.test(name) || name === "default") {
    throw new Error(`“${name}” cannot name a preset: 1 to 128 letters, digits and ._:/@+-, the first one a letter or digit.`);
  }
  if (draft.system.length > MAX_SYSTEM_CHARS) {
    throw new Error(`${name}: the system text has more than ${MAX_SYSTEM_CHARS.toLocaleString("en")} characters.`);
  }
  return {
    name,
    ...(draft.system === "" ? {} : { system: draft.system }),
    ...(draft.place === "before" ? {} : { system_place: draft.place }),
    ...(draft.thinking === "" ? {} : { thinking: draft.thinking === "yes" }),
    ...othersOf(name, draft.others),
  };
}

function othersOf(name: string, text: string): { [name: string]: Json } {
  if (text.trim() === "") {
    return {};
  }
  let others: Json;
  try {
    others = JSON.parse(text) as Json;
  } catch (error) {
    throw new Error(`${name}: the other settings are no JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (!isObject(others)) {
    throw new Error(`${name}: the other settings must be an object, such as {"sampling": {"temperature": 0.2}}.`);
  }
  const own = ["name", "system", "system_place", "thinking"].find((member) => member in (others as object));
  if (own !== undefined) {
    throw new Error(`${name}: ${own} has a field of its own.`);
  }
  return others;
}
