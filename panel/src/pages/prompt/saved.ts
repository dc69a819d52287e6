/** Prompts that somebody saved in this browser, by name: the system text and the message. */

import { signal } from "@preact/signals";
import { whenAnotherSignsIn } from "../../core/owner";

export interface SavedPrompt {
  readonly name: string;
  readonly system: string;
  readonly text: string;
}

export const MOST_PROMPTS = 50;
export const MOST_NAME_CHARS = 80;
/** Of both texts together: browsers give a page about five million characters. */
export const MOST_PROMPT_CHARS = 40_000;
const KEPT_AS = "paddler-trio-prompts";

export const saved = signal<readonly SavedPrompt[]>(readKept());

whenAnotherSignsIn(() => keep([]));

/** What is wrong with a prompt that is to be saved; null if nothing is. */
export function savingProblem(name: string, system: string, text: string, known: readonly SavedPrompt[]): string | null {
  if (name.trim() === "") {
    return "Give it a name.";
  }
  if (system.length + text.length > MOST_PROMPT_CHARS) {
    return `It has ${system.length + text.length} characters, the limit is ${MOST_PROMPT_CHARS}.`;
  }
  const isNew = !known.some((each) => each.name === name.trim());
  return isNew && known.length >= MOST_PROMPTS ? `${MOST_PROMPTS} are saved already: delete one.` : null;
}

/** With this one, in the place of another of its name; sorted. */
export function withPrompt(known: readonly SavedPrompt[], prompt: SavedPrompt): SavedPrompt[] {
  const others = known.filter((each) => each.name !== prompt.name);
  return [...others, prompt].sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
}

/** What was kept, as far as it makes sense. */
export function readPrompts(text: string | null): SavedPrompt[] {
  try {
    const found: unknown = JSON.parse(text ?? "[]");
    return Array.isArray(found) ? found.filter(isPrompt).slice(0, MOST_PROMPTS) : [];
  } catch {
    return [];
  }
}

/** False where the browser keeps nothing: it lasts as long as the page then. */
export function keep(prompts: readonly SavedPrompt[]): boolean {
  saved.value = prompts;
  try {
    window.localStorage.setItem(KEPT_AS, JSON.stringify(prompts));
    return true;
  } catch {
    return false;
  }
}

function isPrompt(value: unknown): value is SavedPrompt {
  const each = value as SavedPrompt | null;
  return [each?.name, each?.system, each?.text].every((part) => typeof part === "string");
}

function readKept(): SavedPrompt[] {
  try {
    return readPrompts(window.localStorage.getItem(KEPT_AS));
  } catch {
    return [];
  }
}
