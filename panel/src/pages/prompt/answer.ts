/** One answer as it grows: what the chunks and comments of a stream make of it. Pure. */

import type { RequestView } from "../../types";
import type { SseItem } from "./sse_parser";

export interface ToolCall {
  readonly id: string;
  readonly name: string;
  /** JSON text as the model wrote it; valid once the answer ended. */
  readonly arguments: string;
}

/** Why nothing comes yet, as the balancer says it in a comment. */
export type Waiting =
  | { readonly kind: "queued"; readonly position: number; readonly startS: number | null; readonly reason: string }
  | { readonly kind: "prefilling"; readonly done: number; readonly total: number }
  | { readonly kind: "working" };

export interface Failure {
  /** The HTTP status, or 0 if the stream broke off or never began. */
  readonly status: number;
  readonly text: string;
  readonly field: string | null;
  readonly retryAfterS: number | null;
}

/** Counts and times that the last chunk reports. Durations in ms, rates in tokens a second. */
export interface Counts {
  readonly promptTokens: number | null;
  readonly cachedTokens: number | null;
  readonly tokens: number | null;
  readonly reasoningTokens: number | null;
  readonly promptMs: number | null;
  readonly generatedMs: number | null;
  readonly tokensPerS: number | null;
}

/** What the balancer's record of the request adds. Times in ms. */
export interface AnswerRecord {
  readonly key: number;
  /** Those that worked on it, in their order. */
  readonly agents: readonly string[];
  /** From its arrival at the balancer to the first result. */
  readonly ttftMs: number | null;
  readonly queueMs: number | null;
  readonly cachedTokens: number | null;
}

export interface Answer {
  readonly requestId: string;
  /** The deployment that was asked for. */
  readonly deployment: string;
  readonly phase: "waiting" | "streaming" | "done" | "stopped" | "failed";
  readonly waiting: Waiting | null;
  readonly content: string;
  readonly reasoning: string;
  readonly calls: readonly ToolCall[];
  readonly finishReason: string | null;
  readonly counts: Counts | null;
  readonly failure: Failure | null;
  readonly record: AnswerRecord | null;
  /** Of the page's clock, in ms: when it was sent, when the first text came, when it was over. */
  readonly sentMs: number;
  readonly firstMs: number | null;
  readonly endedMs: number | null;
  /** Chunks with text so far: about the tokens, until the balancer counts them. */
  readonly chunks: number;
  /** It is text as the model wrote it: no part of it was parsed. */
  readonly isRaw: boolean;
}

export function newAnswer(
  requestId: string,
  deployment: string,
  sentMs: number,
  isRaw = false,
): Answer {
  return {
    requestId,
    deployment,
    phase: "waiting",
    waiting: null,
    content: "",
    reasoning: "",
    calls: [],
    finishReason: null,
    counts: null,
    failure: null,
    record: null,
    sentMs,
    firstMs: null,
    endedMs: null,
    chunks: 0,
    isRaw,
  };
}

export function isRunning(answer: Answer): boolean {
  return answer.phase === "waiting" || answer.phase === "streaming";
}

/** The answer after one more item of its stream. */
export function withItem(answer: Answer, item: SseItem, nowMs: number): Answer {
  if (item.kind === "comment") {
    const waiting = readWaiting(item.text);
    return waiting === null || answer.phase !== "waiting" ? answer : { ...answer, waiting };
  }
  if (item.data === "[DONE]") return ended(answer, nowMs);
  let chunk: unknown;
  try {
    chunk = JSON.parse(item.data);
  } catch {
    return failed(answer, failure(0, `the stream sent what is no JSON: ${clip(item.data)}`), nowMs);
  }
  if (!isObject(chunk)) return answer;
  if (isObject(chunk.error)) return failed(answer, failureOf(0, chunk.error), nowMs);
  return withChunk(answer, chunk, nowMs);
}

/** `[DONE]` came. An answer that failed or was stopped stays so. */
export function ended(answer: Answer, nowMs: number): Answer {
  if (!isRunning(answer)) return answer;
  return { ...answer, phase: "done", waiting: null, endedMs: nowMs };
}

/** The person stopped it. */
export function stopped(answer: Answer, nowMs: number): Answer {
  if (!isRunning(answer)) return answer;
  return { ...answer, phase: "stopped", waiting: null, endedMs: nowMs };
}

export function failed(answer: Answer, why: Failure, nowMs: number): Answer {
  if (!isRunning(answer)) return answer;
  return { ...answer, phase: "failed", waiting: null, failure: why, endedMs: nowMs };
}

export function failure(status: number, text: string): Failure {
  return { status, text, field: null, retryAfterS: null };
}

/** The failure that a response's body describes, whatever its form. */
export function failureOfBody(status: number, body: string, retryAfter: string | null): Failure {
  const seconds = retryAfter === null ? NaN : Number(retryAfter);
  const retryAfterS = Number.isFinite(seconds) ? seconds : null;
  try {
    const value: unknown = JSON.parse(body);
    if (isObject(value)) {
      const error = value.error;
      if (isObject(error)) return { ...failureOf(status, error), retryAfterS };
      if (typeof error === "string") return { ...failure(status, error), retryAfterS };
    }
  } catch {
    // a proxy's page or a plain sentence: shown as it is
  }
  return { ...failure(status, clip(body.trim()) || `status ${status}`), retryAfterS };
}

/** What is shown of a request's record. */
export function recordOf(view: RequestView): AnswerRecord {
  const agents = view.placements.map((placement) => placement.agent);
  const queued = view.queue.filter((stay) => stay.until_ms !== null);
  const { first_result_ms, arrived_ms } = view;
  return {
    key: view.key,
    agents: agents.filter((agent, index) => agent !== agents[index - 1]),
    ttftMs: first_result_ms === null ? null : Math.max(0, first_result_ms - arrived_ms),
    queueMs: queued.reduce((sum, stay) => sum + ((stay.until_ms ?? 0) - stay.since_ms), 0),
    cachedTokens: view.placements.at(-1)?.cached_tokens ?? null,
  };
}

// ------------------------------------------------------------------------------------- inside

function failureOf(status: number, error: Record<string, unknown>): Failure {
  const code = typeof error.code === "number" ? error.code : status || statusOf(error.code);
  return {
    status: code,
    text: typeof error.message === "string" ? error.message : clip(JSON.stringify(error)),
    field: typeof error.param === "string" ? error.param : null,
    retryAfterS: null,
  };
}

/** An error inside a stream has no status of its own; its code names one. */
function statusOf(code: unknown): number {
  switch (code) {
    case "agent_lost":
      return 502;
    case "overloaded":
      return 503;
    case "timeout":
      return 504;
    case "grammar_unsatisfiable":
      return 422;
    case "embeddings_disabled":
    case "generation_disabled":
    case "not_supported":
      return 501;
    case "context_length_exceeded":
    case "chat_template_error":
    case "grammar_with_thinking":
    case "images_not_supported":
    case "invalid_grammar":
    case "invalid_image":
    case "invalid_tool_schema":
    case "invalid_value":
      return 400;
    default:
      return 0;
  }
}

/** `queued position=2 expected_start_s=1.4 reason`, `prefilling tokens=512/4096` or `working`; null for others. */
export function readWaiting(text: string): Waiting | null {
  const queued = /^queued position=(\d+)(?: expected_start_s=([\d.]+))?(?: (.*))?$/.exec(text);
  if (queued !== null) {
    const startS = queued[2] === undefined ? null : Number(queued[2]);
    return { kind: "queued", position: Number(queued[1]), startS, reason: queued[3] ?? "" };
  }
  const prefilling = /^prefilling tokens=(\d+)\/(\d+)$/.exec(text);
  if (prefilling !== null) {
    return { kind: "prefilling", done: Number(prefilling[1]), total: Number(prefilling[2]) };
  }
  return text === "working" ? { kind: "working" } : null;
}

function withChunk(answer: Answer, chunk: Record<string, unknown>, nowMs: number): Answer {
  let next = answer;
  const progress = chunk.prompt_progress;
  if (isObject(progress) && next.phase === "waiting") {
    const [done, total] = [numberOf(progress.processed), numberOf(progress.total)];
    if (done !== null && total !== null) {
      next = { ...next, waiting: { kind: "prefilling", done, total } };
    }
  }
  for (const choice of Array.isArray(chunk.choices) ? chunk.choices : []) {
    if (isObject(choice)) next = withChoice(next, choice, nowMs);
  }
  if (isObject(chunk.timings) || isObject(chunk.usage)) {
    next = { ...next, counts: countsOf(chunk, next.counts) };
  }
  return next;
}

function withChoice(answer: Answer, choice: Record<string, unknown>, nowMs: number): Answer {
  let next = answer;
  const delta = isObject(choice.delta) ? choice.delta : {};
  const content = textOf(delta.content) + textOf(choice.text);
  const reasoning = textOf(delta.reasoning_content);
  const calls = Array.isArray(delta.tool_calls) ? delta.tool_calls.filter(isObject) : [];
  if (content !== "" || reasoning !== "" || calls.length > 0) {
    next = {
      ...next,
      phase: next.phase === "waiting" ? "streaming" : next.phase,
      waiting: null,
      content: next.content + content,
      reasoning: next.reasoning + reasoning,
      calls: calls.reduce(withCall, next.calls),
      firstMs: next.firstMs ?? nowMs,
      chunks: next.chunks + 1,
    };
  }
  if (typeof choice.finish_reason === "string") {
    next = { ...next, finishReason: choice.finish_reason };
  }
  return next;
}

function withCall(
  calls: readonly ToolCall[],
  delta: Record<string, unknown>,
): readonly ToolCall[] {
  const index = numberOf(delta.index) ?? calls.length;
  const called = isObject(delta.function) ? delta.function : {};
  const known = calls[index];
  if (known === undefined) {
    if (index !== calls.length) return calls; // a call is opened before it goes on
    const id = textOf(delta.id) || `call_${index}`;
    return [...calls, { id, name: textOf(called.name), arguments: textOf(called.arguments) }];
  }
  const grown = {
    id: known.id,
    name: known.name + textOf(called.name),
    arguments: known.arguments + textOf(called.arguments),
  };
  return calls.map((call, at) => (at === index ? grown : call));
}

function countsOf(chunk: Record<string, unknown>, before: Counts | null): Counts {
  const timings = isObject(chunk.timings) ? chunk.timings : {};
  const usage = isObject(chunk.usage) ? chunk.usage : {};
  const promptDetails = isObject(usage.prompt_tokens_details) ? usage.prompt_tokens_details : {};
  const details = isObject(usage.completion_tokens_details) ? usage.completion_tokens_details : {};
  const cached = numberOf(promptDetails.cached_tokens) ?? numberOf(timings.cache_n);
  const computed = numberOf(timings.prompt_n);
  const summed = computed === null || cached === null ? null : computed + cached;
  return {
    promptTokens: numberOf(usage.prompt_tokens) ?? summed ?? before?.promptTokens ?? null,
    cachedTokens: cached ?? before?.cachedTokens ?? null,
    tokens:
      numberOf(usage.completion_tokens) ?? numberOf(timings.predicted_n) ?? before?.tokens ?? null,
    reasoningTokens: numberOf(details.reasoning_tokens) ?? before?.reasoningTokens ?? null,
    promptMs: numberOf(timings.prompt_ms) ?? before?.promptMs ?? null,
    generatedMs: numberOf(timings.predicted_ms) ?? before?.generatedMs ?? null,
    tokensPerS: positive(numberOf(timings.predicted_per_second)) ?? before?.tokensPerS ?? null,
  };
}

function positive(value: number | null): number | null {
  return value !== null && value > 0 ? value : null;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function clip(text: string): string {
  return text.length > 500 ? `${text.slice(0, 500)}…` : text;
}
