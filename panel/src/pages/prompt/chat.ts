/** What the Prompt page holds: two sides at most, each with a conversation; answers go on while other pages are shown. */

import { type Signal, batch, computed, signal } from "@preact/signals";
import { whenAnotherSignsIn } from "../../core/owner";
import { type Answer, isRunning, newAnswer } from "./answer";
import { newRequestId, runAnswer, trialBody } from "./answer_run";
import {
  type Conversation,
  EMPTY,
  type Picture,
  type ToolResult,
  added,
  copyOfPath,
  last,
  mustHaveRoom,
  path,
  pathTo,
  withAnswer,
} from "./conversation";
import {
  type Body,
  DEFAULT_SETTINGS,
  type Settings,
  chatBody,
  completionBody,
  messagesOf,
  settingsProblems,
} from "./request_body";
import { toolsOf } from "./schemas";

/** One column of the page. */
export interface Side {
  readonly name: "A" | "B";
  readonly conversation: Signal<Conversation>;
  /** Null: the first one that there is. */
  readonly deployment: Signal<string | null>;
  /** A chat template under trial; null for that of the deployment. */
  readonly template: Signal<string | null>;
  /** The turn whose answer runs. */
  readonly running: Signal<number | null>;
}

export interface RawRun {
  readonly id: number;
  readonly prompt: string;
  readonly answer: Answer;
}

/** Runs that the page keeps; older ones are dropped. */
const MAX_RAW_RUNS = 20;

function newSide(name: Side["name"]): Side {
  return {
    name,
    conversation: signal(EMPTY),
    deployment: signal(null),
    template: signal(null),
    running: signal(null),
  };
}

export const sides: readonly [Side, Side] = [newSide("A"), newSide("B")];
export const isCompared = signal(false);
export const mode = signal<"chat" | "raw">("chat");
export const settings = signal<Settings>(DEFAULT_SETTINGS);
export const problems = computed(() => settingsProblems(settings.value));
export const shownSides = computed<readonly Side[]>(() => (isCompared.value ? sides : [sides[0]]));
export const isBusy = computed(() => shownSides.value.some((side) => side.running.value !== null));

/** The text and the pictures of the turn that is being written. */
export const draft = signal("");
export const pictures = signal<readonly Picture[]>([]);

export const rawPrompt = signal("");
export const rawRuns = signal<readonly RawRun[]>([]);
export const rawRunning = signal<number | null>(null);

const controllers = new Map<Side | "raw", AbortController>();
let lastRawRun = 0;

export function change(some: Partial<Settings>): void {
  settings.value = { ...settings.value, ...some };
}

/** Send what was written to all sides that are shown; an Error, and it stays, where one has no room for it. */
export function send(deployments: readonly string[]): void {
  const text = draft.value;
  const sent = pictures.value;
  for (const side of shownSides.value) {
    mustHaveRoom(side.conversation.value, 2); // it and its answer
  }
  batch(() => {
    draft.value = "";
    pictures.value = [];
    for (const [index, side] of shownSides.value.entries()) {
      const parent = last(side.conversation.value)?.id ?? null;
      const turn = added(side.conversation.value, parent, { role: "user", text, pictures: sent });
      side.conversation.value = turn.conversation;
      answer(side, turn.id, deployments[index] ?? "default");
    }
  });
}

/** Another text in the place of turn `id`, as a branch beside it, and its answer. */
export function edit(side: Side, id: number, text: string, deployment: string): void {
  const before = side.conversation.value.turns.get(id);
  if (before?.role !== "user") {
    return;
  }
  mustHaveRoom(side.conversation.value, 2);
  const turn = added(side.conversation.value, before.parent, {
    role: "user",
    text,
    pictures: before.pictures,
  });
  batch(() => {
    side.conversation.value = turn.conversation;
    answer(side, turn.id, deployment);
  });
}

/** The results of an answer's calls, and the answer to them. */
export function sendResults(side: Side, id: number, results: readonly ToolResult[], deployment: string): void {
  mustHaveRoom(side.conversation.value, 2);
  const turn = added(side.conversation.value, id, { role: "tool", results });
  batch(() => {
    side.conversation.value = turn.conversation;
    answer(side, turn.id, deployment);
  });
}

/** An answer to the turn `parent`, as a branch beside those that it has. */
export function answer(side: Side, parent: number, deployment: string): void {
  stop(side);
  const first = newAnswer(newRequestId(), deployment, performance.now(), side.template.value !== null);
  const turn = added(side.conversation.value, parent, { role: "assistant", answer: first });
  const controller = new AbortController();
  controllers.set(side, controller);
  batch(() => {
    side.conversation.value = turn.conversation;
    side.running.value = turn.id;
  });
  const show = (answer: Answer): void => {
    side.conversation.value = withAnswer(side.conversation.value, turn.id, answer);
    if (!isRunning(answer) && controllers.get(side) === controller) {
      controllers.delete(side);
      side.running.value = null;
    }
  };
  const route = first.isRaw ? "v1/completions" : "v1/chat/completions";
  const body = () => bodyFor(side, parent, deployment, controller.signal);
  void runAnswer(first, route, body, controller.signal, show);
}

/** Close the connection of the side's answer: the balancer stops the request, and its slot is free. */
export function stop(side: Side): void {
  controllers.get(side)?.abort();
}

/** The body that asks for an answer to the turn `parent`. */
export async function bodyFor(
  side: Side,
  parent: number | null,
  deployment: string,
  signal: AbortSignal,
): Promise<Body> {
  const turns = pathTo(side.conversation.value, parent);
  const template = side.template.value;
  if (template === null) {
    return chatBody(turns, settings.value, deployment);
  }
  const tools = settings.value.usesTools ? toolsOf(settings.value.tools) : [];
  const messages = messagesOf(turns, settings.value.system);
  return trialBody(deployment, template, messages, tools, settings.value, signal);
}

/** Begin anew; what runs is stopped. */
export function clear(): void {
  batch(() => {
    for (const side of sides) {
      stop(side);
      controllers.delete(side);
      side.running.value = null;
      side.conversation.value = EMPTY;
    }
  });
}

/** Show the second side, which begins with what the first one shows; or hide it. */
export function compare(isOn: boolean): void {
  batch(() => {
    isCompared.value = isOn;
    if (isOn) {
      sides[1].conversation.value = withoutRunning(copyOfPath(sides[0].conversation.value));
    } else {
      stop(sides[1]);
    }
  });
}

/** A conversation and settings out of a file, on the first side. */
export function restore(conversation: Conversation, restored: Settings): void {
  batch(() => {
    clear();
    isCompared.value = false;
    sides[0].conversation.value = conversation;
    settings.value = restored;
  });
}

/** Continue the raw prompt. */
export function runRaw(deployment: string): void {
  stopRaw();
  lastRawRun += 1;
  const id = lastRawRun;
  const prompt = rawPrompt.value;
  const first = newAnswer(newRequestId(), deployment, performance.now(), true);
  const controller = new AbortController();
  controllers.set("raw", controller);
  batch(() => {
    rawRuns.value = [{ id, prompt, answer: first }, ...rawRuns.value].slice(0, MAX_RAW_RUNS);
    rawRunning.value = id;
  });
  const show = (answer: Answer): void => {
    rawRuns.value = rawRuns.value.map((run) => (run.id === id ? { ...run, answer } : run));
    if (!isRunning(answer) && controllers.get("raw") === controller) {
      controllers.delete("raw");
      rawRunning.value = null;
    }
  };
  const body = () => Promise.resolve(completionBody(prompt, settings.value, deployment));
  void runAnswer(first, "v1/completions", body, controller.signal, show);
}

export function stopRaw(): void {
  controllers.get("raw")?.abort();
}

whenAnotherSignsIn(() =>
  batch(() => {
    clear();
    stopRaw();
    controllers.delete("raw");
    draft.value = "";
    pictures.value = [];
    rawPrompt.value = "";
    rawRuns.value = [];
    rawRunning.value = null;
    settings.value = DEFAULT_SETTINGS;
  }),
);

/** A copy whose last turn is no answer that still runs. */
function withoutRunning(conversation: Conversation): Conversation {
  const turn = path(conversation).at(-1);
  if (turn?.role !== "assistant" || !isRunning(turn.answer)) {
    return conversation;
  }
  return withAnswer(conversation, turn.id, { ...turn.answer, phase: "stopped", waiting: null });
}
