/** Conversations as JSON files. A file is checked as a whole before any of it is used. Pure. */

import { isObject, newAnswer, type Answer, type ToolCall } from "./answer";
import {
  EMPTY,
  MAX_TURNS,
  type Conversation,
  type Picture,
  type ToolResult,
  type Turn,
} from "./conversation";
import { PICTURE_TYPES } from "./pictures";
import { DEFAULT_SETTINGS, type Settings } from "./request_body";

export const MAX_FILE_BYTES = 64 * 1024 * 1024;
const FORMAT = "paddler-trio.conversation.1";

/** The text of a file with all branches and the settings. */
export function asFile(conversation: Conversation, settings: Settings): string {
  return JSON.stringify(
    {
      format: FORMAT,
      settings,
      turns: [...conversation.turns.values()].map(plainTurn),
      chosen: [...conversation.chosen],
    },
    null,
    2,
  );
}

/** What a file has; throws an Error that names the place, the value and what it must be. */
export function fromFile(text: string): { conversation: Conversation; settings: Settings } {
  if (text.length > MAX_FILE_BYTES) {
    throw new Error(`the file has ${text.length} characters, the limit is ${MAX_FILE_BYTES}`);
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("the file is no JSON");
  }
  if (!isObject(value) || value.format !== FORMAT) {
    throw new Error(`format must be "${FORMAT}": the file is no conversation of this panel`);
  }
  const turns = list(value.turns, "turns");
  if (turns.length > MAX_TURNS) {
    throw new Error(`turns has ${turns.length} entries, the limit is ${MAX_TURNS}`);
  }
  const read = new Map<number, Turn>();
  turns.forEach((each, index) => {
    const turn = readTurn(each, `turns[${index}]`);
    if (turn.parent !== null && !read.has(turn.parent)) {
      throw new Error(`turns[${index}].parent is ${turn.parent}, must be the id of an earlier turn`);
    }
    if (read.has(turn.id)) throw new Error(`turns[${index}].id is ${turn.id}, which is there already`);
    read.set(turn.id, turn);
  });
  const chosen = new Map<number, number>();
  list(value.chosen, "chosen").forEach((each, index) => {
    const pair = list(each, `chosen[${index}]`);
    const [at, shown] = [pair[0], pair[1]];
    const turn = typeof shown === "number" ? read.get(shown) : undefined;
    if (typeof at !== "number" || turn === undefined || (turn.parent ?? -1) !== at) {
      throw new Error(`chosen[${index}] must be the ids of a turn and of one that follows it`);
    }
    chosen.set(at, turn.id);
  });
  const nextId = Math.max(-1, ...read.keys()) + 1;
  const conversation = read.size === 0 ? EMPTY : { turns: read, chosen, nextId };
  return { conversation, settings: readSettings(value.settings) };
}

// ------------------------------------------------------------------------------------- inside

function plainTurn(turn: Turn): Record<string, unknown> {
  return turn.role === "assistant" ? { ...turn, answer: finished(turn.answer) } : { ...turn };
}

/** A file has no answer that still runs. */
function finished(answer: Answer): Answer {
  const isRunning = answer.phase === "waiting" || answer.phase === "streaming";
  return isRunning ? { ...answer, phase: "stopped", waiting: null } : answer;
}

function readTurn(value: unknown, where: string): Turn {
  const turn = object(value, where);
  const id = whole(turn.id, `${where}.id`);
  const parent = turn.parent === null ? null : whole(turn.parent, `${where}.parent`);
  switch (turn.role) {
    case "user": {
      const pictures = list(turn.pictures, `${where}.pictures`).map((each, index) =>
        readPicture(each, `${where}.pictures[${index}]`),
      );
      return { id, parent, role: "user", text: text(turn.text, `${where}.text`), pictures };
    }
    case "tool": {
      const results = list(turn.results, `${where}.results`).map((each, index) =>
        readResult(each, `${where}.results[${index}]`),
      );
      return { id, parent, role: "tool", results };
    }
    case "assistant":
      return { id, parent, role: "assistant", answer: readAnswer(turn.answer, `${where}.answer`) };
    default:
      throw new Error(`${where}.role must be user, assistant or tool`);
  }
}

function readPicture(value: unknown, where: string): Picture {
  const picture = object(value, where);
  const url = text(picture.url, `${where}.url`);
  const type = PICTURE_TYPES.find((each) => url.startsWith(`data:${each};base64,`));
  if (type === undefined || !/^[A-Za-z0-9+/=]*$/.test(url.slice(url.indexOf(",") + 1))) {
    throw new Error(`${where}.url must be a data URI of a picture`);
  }
  const bytes = Math.floor((url.length - url.indexOf(",") - 1) * 0.75);
  return { name: text(picture.name, `${where}.name`), type, bytes, url };
}

function readResult(value: unknown, where: string): ToolResult {
  const result = object(value, where);
  return {
    callId: text(result.callId, `${where}.callId`),
    name: text(result.name, `${where}.name`),
    text: text(result.text, `${where}.text`),
  };
}

function readAnswer(value: unknown, where: string): Answer {
  const answer = object(value, where);
  const phase = answer.phase;
  if (phase !== "done" && phase !== "stopped" && phase !== "failed") {
    throw new Error(`${where}.phase must be done, stopped or failed`);
  }
  const calls: ToolCall[] = list(answer.calls, `${where}.calls`).map((each, index) => {
    const call = object(each, `${where}.calls[${index}]`);
    return {
      id: text(call.id, `${where}.calls[${index}].id`),
      name: text(call.name, `${where}.calls[${index}].name`),
      arguments: text(call.arguments, `${where}.calls[${index}].arguments`),
    };
  });
  const failure = isObject(answer.failure) ? answer.failure : null;
  return {
    ...newAnswer(
      text(answer.requestId, `${where}.requestId`),
      text(answer.deployment, `${where}.deployment`),
      0,
      answer.isRaw === true,
    ),
    phase,
    content: text(answer.content, `${where}.content`),
    reasoning: text(answer.reasoning, `${where}.reasoning`),
    calls,
    finishReason: typeof answer.finishReason === "string" ? answer.finishReason : null,
    failure:
      failure === null
        ? null
        : {
            status: typeof failure.status === "number" ? failure.status : 0,
            text: typeof failure.text === "string" ? failure.text : "failed",
            field: typeof failure.field === "string" ? failure.field : null,
            retryAfterS: null,
          },
  };
}

function readSettings(value: unknown): Settings {
  if (!isObject(value)) return DEFAULT_SETTINGS;
  const parameters: Record<string, string> = {};
  for (const [name, each] of Object.entries(isObject(value.parameters) ? value.parameters : {})) {
    if (typeof each === "string") parameters[name] = each;
  }
  const tools = Array.isArray(value.tools) ? value.tools.filter(isObject) : [];
  return {
    system: typeof value.system === "string" ? value.system : "",
    parameters,
    stop: typeof value.stop === "string" ? value.stop : "",
    ignoresEnd: value.ignoresEnd === true,
    thinking: value.thinking === "on" || value.thinking === "off" ? value.thinking : "template",
    tools: tools.map((tool) => ({
      name: typeof tool.name === "string" ? tool.name : "",
      description: typeof tool.description === "string" ? tool.description : "",
      schema: typeof tool.schema === "string" ? tool.schema : "",
    })),
    usesTools: value.usesTools !== false,
    toolChoice: value.toolChoice === "required" || value.toolChoice === "none" ? value.toolChoice : "auto",
    format: value.format === "json" || value.format === "schema" ? value.format : "text",
    schema: typeof value.schema === "string" ? value.schema : DEFAULT_SETTINGS.schema,
  };
}

function object(value: unknown, where: string): Record<string, unknown> {
  if (!isObject(value)) throw new Error(`${where} must be an object`);
  return value;
}

function list(value: unknown, where: string): unknown[] {
  if (!Array.isArray(value)) throw new Error(`${where} must be a list`);
  return value;
}

function text(value: unknown, where: string): string {
  if (typeof value !== "string") throw new Error(`${where} must be a text`);
  return value;
}

function whole(value: unknown, where: string): number {
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) {
    throw new Error(`${where} must be a whole number, 0 or more`);
  }
  return value;
}
