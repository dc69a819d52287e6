/** The bodies of the requests that the page sends. Pure. */

import { type Answer, isObject } from "./answer";
import type { Turn } from "./conversation";
import { PARAMETERS, readParameter, readStops } from "./parameters";
import { readSchema, toolProblems, toolsOf, type Tool } from "./schemas";

export interface Settings {
  readonly system: string;
  /** By the name of a parameter, as it was typed; empty or absent: the deployment's own. */
  readonly parameters: Readonly<Record<string, string>>;
  readonly stop: string;
  /** Never sample the tokens that end an answer: it is as long as max tokens allow. */
  readonly ignoresEnd: boolean;
  readonly thinking: "template" | "on" | "off";
  readonly tools: readonly Tool[];
  readonly usesTools: boolean;
  readonly toolChoice: "auto" | "required" | "none";
  readonly format: "text" | "json" | "schema";
  readonly schema: string;
}

export const DEFAULT_SETTINGS: Settings = {
  system: "",
  parameters: {},
  stop: "",
  ignoresEnd: false,
  thinking: "template",
  tools: [],
  usesTools: true,
  toolChoice: "auto",
  format: "text",
  schema: JSON.stringify(
    { type: "object", properties: { answer: { type: "string" } }, required: ["answer"] },
    null,
    2,
  ),
};

export type Body = Record<string, unknown>;

/** The balancer's `max_body_bytes`, unless its operator changed it. */
export const MAX_BODY_BYTES = 33_554_432;

/** What must be corrected before a request can be sent; by the name of the field. */
export function settingsProblems(settings: Settings): Map<string, string> {
  const problems = new Map<string, string>();
  for (const parameter of PARAMETERS) {
    const { problem } = readParameter(parameter, settings.parameters[parameter.name] ?? "");
    if (problem !== null) problems.set(parameter.name, problem);
  }
  const stop = readStops(settings.stop);
  if (stop.problem !== null) problems.set("stop", stop.problem);
  if (settings.usesTools) {
    for (const [index, problem] of toolProblems(settings.tools)) {
      problems.set(`tools[${index}]`, problem);
    }
  }
  if (settings.format === "schema") {
    const { problem } = readSchema(settings.schema);
    if (problem !== null) problems.set("response_format", problem);
  }
  return problems;
}

/** The body of a chat completion that answers `turns`. */
export function chatBody(turns: readonly Turn[], settings: Settings, deployment: string): Body {
  const tools = settings.usesTools ? toolsOf(settings.tools) : [];
  return {
    model: deployment,
    messages: messagesOf(turns, settings.system),
    ...samplingOf(settings),
    ...(tools.length > 0 ? { tools, tool_choice: settings.toolChoice } : {}),
    ...formatOf(settings),
    ...(settings.thinking === "template" ? {} : { enable_thinking: settings.thinking === "on" }),
  };
}

/** The body of a completion that continues `prompt`: a text, or the ids of its tokens. */
export function completionBody(
  prompt: string | readonly number[],
  settings: Settings,
  deployment: string,
): Body {
  return { model: deployment, prompt, ...samplingOf(settings), ...formatOf(settings) };
}

/** What the page adds to a body: a stream, with usage, progress, and a comment every second. */
export function streamed(body: Body): Body {
  return {
    ...body,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    sse_ping_interval: 1,
  };
}

/** The messages of a conversation; a turn that failed without any text is left out, and so are calls without a result. */
export function messagesOf(turns: readonly Turn[], system: string): Body[] {
  const messages: Body[] = [];
  if (system.trim() !== "") messages.push({ role: "system", content: system });
  for (const [index, turn] of turns.entries()) {
    if (turn.role === "user") {
      messages.push({ role: "user", content: userContent(turn.text, turn.pictures) });
    } else if (turn.role === "tool") {
      for (const result of turn.results) {
        messages.push({ role: "tool", tool_call_id: result.callId, content: result.text });
      }
    } else {
      const next = turns[index + 1];
      const results = next?.role === "tool" ? next.results : [];
      const message = assistantMessage(turn.answer, new Set(results.map((result) => result.callId)));
      if (message !== null) messages.push(message);
    }
  }
  return messages;
}

// ------------------------------------------------------------------------------------- inside

function userContent(text: string, pictures: readonly { url: string }[]): unknown {
  if (pictures.length === 0) return text;
  return [
    ...pictures.map((picture) => ({ type: "image_url", image_url: { url: picture.url } })),
    ...(text === "" ? [] : [{ type: "text", text }]),
  ];
}

function assistantMessage(answer: Answer, answered: ReadonlySet<string>): Body | null {
  // a call that was cut off is no JSON, and no tool was asked
  const calls = answer.calls.filter((call) => answered.has(call.id) && isJsonObject(call.arguments));
  if (answer.content === "" && calls.length === 0 && (answer.phase !== "done" || answer.calls.length > 0)) return null;
  return {
    role: "assistant",
    content: answer.content === "" && calls.length > 0 ? null : answer.content,
    ...(answer.reasoning === "" ? {} : { reasoning_content: answer.reasoning }),
    ...(calls.length === 0
      ? {}
      : {
          tool_calls: calls.map((call) => ({
            id: call.id,
            type: "function",
            function: { name: call.name, arguments: call.arguments },
          })),
        }),
  };
}

function isJsonObject(text: string): boolean {
  try {
    return isObject(JSON.parse(text));
  } catch {
    return false;
  }
}

function samplingOf(settings: Settings): Body {
  const body: Body = {};
  for (const parameter of PARAMETERS) {
    const { value } = readParameter(parameter, settings.parameters[parameter.name] ?? "");
    if (value !== null) body[parameter.name] = value;
  }
  const { value: stop } = readStops(settings.stop);
  if (stop.length > 0) body.stop = stop;
  if (settings.ignoresEnd) body.ignore_eos = true;
  return body;
}

function formatOf(settings: Settings): Body {
  if (settings.format === "json") return { response_format: { type: "json_object" } };
  const { schema } = settings.format === "schema" ? readSchema(settings.schema) : { schema: null };
  if (schema === null) return {};
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } };
}
