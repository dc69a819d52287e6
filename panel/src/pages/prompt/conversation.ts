/**
 * A conversation as a tree of turns: editing a turn or asking again adds a branch, and nothing is
 * lost. Pure; every function returns a new conversation.
 */

import type { Answer } from "./answer";

export interface Picture {
  readonly name: string;
  readonly type: string;
  readonly bytes: number;
  /** A data URI. */
  readonly url: string;
}

export interface ToolResult {
  readonly callId: string;
  readonly name: string;
  readonly text: string;
}

interface Common {
  readonly id: number;
  /** The turn before it; null for a first one. */
  readonly parent: number | null;
}

export interface UserTurn extends Common {
  readonly role: "user";
  readonly text: string;
  readonly pictures: readonly Picture[];
}

export interface AnswerTurn extends Common {
  readonly role: "assistant";
  readonly answer: Answer;
}

export interface ToolTurn extends Common {
  readonly role: "tool";
  readonly results: readonly ToolResult[];
}

export type Turn = UserTurn | AnswerTurn | ToolTurn;

export type NewTurn =
  | Omit<UserTurn, "id" | "parent">
  | Omit<AnswerTurn, "id" | "parent">
  | Omit<ToolTurn, "id" | "parent">;

export interface Conversation {
  readonly turns: ReadonlyMap<number, Turn>;
  /** By parent (-1 for the beginning): which of its branches is shown. */
  readonly chosen: ReadonlyMap<number, number>;
  readonly nextId: number;
}

/** In one conversation, all branches together; the balancer's `max_messages` is far larger. */
export const MAX_TURNS = 2_000;
const BEGINNING = -1;

export const EMPTY: Conversation = { turns: new Map(), chosen: new Map(), nextId: 0 };

/** The turns that are shown, first to last. */
export function path(conversation: Conversation): Turn[] {
  const shown: Turn[] = [];
  let at = conversation.chosen.get(BEGINNING);
  while (at !== undefined) {
    const turn = conversation.turns.get(at);
    if (turn === undefined) break;
    shown.push(turn);
    at = conversation.chosen.get(at);
  }
  return shown;
}

/** The shown turns up to and with this one, or none for null. */
export function pathTo(conversation: Conversation, id: number | null): Turn[] {
  const turns: Turn[] = [];
  for (let at = id; at !== null; ) {
    const turn = conversation.turns.get(at);
    if (turn === undefined) break;
    turns.unshift(turn);
    at = turn.parent;
  }
  return turns;
}

export function last(conversation: Conversation): Turn | null {
  return path(conversation).at(-1) ?? null;
}

/** All turns beside this one, itself among them, in the order in which they were made. */
export function branches(conversation: Conversation, id: number): number[] {
  const parent = conversation.turns.get(id)?.parent;
  return [...conversation.turns.values()]
    .filter((turn) => turn.parent === parent)
    .map((turn) => turn.id);
}

/** An Error unless so many turns can be added. */
export function mustHaveRoom(conversation: Conversation, turns: number): void {
  const count = conversation.turns.size;
  if (count + turns > MAX_TURNS) {
    throw new Error(`the conversation has ${count} turns, the limit is ${MAX_TURNS}: export it, and begin a new one`);
  }
}

/** With a turn after `parent` (null: as a first one), which is shown from now on. */
export function added(
  conversation: Conversation,
  parent: number | null,
  turn: NewTurn,
): { conversation: Conversation; id: number } {
  mustHaveRoom(conversation, 1);
  const id = conversation.nextId;
  const turns = new Map(conversation.turns).set(id, { ...turn, id, parent } as Turn);
  const chosen = new Map(conversation.chosen).set(parent ?? BEGINNING, id);
  return { conversation: { turns, chosen, nextId: id + 1 }, id };
}

/** With more of its answer in turn `id`; an answer to another request, of a conversation that is gone, changes nothing. */
export function withAnswer(conversation: Conversation, id: number, answer: Answer): Conversation {
  const turn = conversation.turns.get(id);
  if (turn?.role !== "assistant" || turn.answer.requestId !== answer.requestId) return conversation;
  return { ...conversation, turns: new Map(conversation.turns).set(id, { ...turn, answer }) };
}

/** The branch `id` is shown, and below it what was shown there before. */
export function choose(conversation: Conversation, id: number): Conversation {
  const turn = conversation.turns.get(id);
  if (turn === undefined) return conversation;
  const chosen = new Map(conversation.chosen).set(turn.parent ?? BEGINNING, id);
  return { ...conversation, chosen };
}

/** The shown turns alone: what a second side of a comparison begins with. */
export function copyOfPath(conversation: Conversation): Conversation {
  return path(conversation).reduce<Conversation>((copy, turn) => {
    const parent = last(copy)?.id ?? null;
    return added(copy, parent, turn).conversation;
  }, EMPTY);
}
