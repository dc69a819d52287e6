/** Sends a request and follows its answer to the end. Aborting closes the connection, which frees the slot. */

import { ApiError, api, request } from "../../core/api";
import type { RequestDetail, TemplatePreview } from "../../types";
import {
  type Answer,
  ended,
  failed,
  failure,
  isRunning,
  recordOf,
  stopped,
  withItem,
} from "./answer";
import { type Body, MAX_BODY_BYTES, completionBody, streamed } from "./request_body";
import type { Settings } from "./request_body";
import { SseParser } from "./sse_parser";

/** Characters that the page keeps of one answer. */
const MAX_ANSWER_CHARS = 4_000_000;
/** Changes are shown so often: fast enough for the eye, slow enough for long answers. */
const SHOW_MS = 80;

export type Path = "v1/chat/completions" | "v1/completions";

/** An id that the balancer takes over as the request's own. */
export function newRequestId(): string {
  const random = crypto.getRandomValues(new Uint8Array(12));
  return `panel-${[...random].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * Run one request; `show` gets the answer at most every `SHOW_MS`, and a last time when it has ended.
 *
 * Raises nothing: what goes wrong is the answer's failure.
 */
export async function runAnswer(
  first: Answer,
  path: Path,
  body: () => Promise<Body>,
  signal: AbortSignal,
  show: (answer: Answer) => void,
): Promise<void> {
  let answer = first;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let asksRecord = true;
  const change = (next: Answer): void => {
    answer = next;
    timer ??= setTimeout(() => {
      timer = undefined;
      show(answer);
    }, SHOW_MS);
    if (answer.firstMs !== null && asksRecord) {
      asksRecord = false;
      void withRecord(answer.requestId).then((record) => change({ ...answer, record: answer.record ?? record }));
    }
  };
  try {
    await follow(answer, path, await body(), signal, (next) => change(next), () => answer);
    change(ended(answer, performance.now()));
  } catch (error) {
    if (signal.aborted) {
      change(stopped(answer, performance.now()));
    } else {
      const retryAfterS = error instanceof ApiError ? (error.retryAfter_s ?? null) : null;
      const why =
        error instanceof ApiError
          ? { status: error.status, text: error.text, field: error.field ?? null, retryAfterS }
          : failure(0, messageOf(error));
      change(failed(answer, why, performance.now()));
    }
  }
  const record = await withRecord(answer.requestId);
  clearTimeout(timer);
  show({ ...answer, record: record ?? answer.record });
}

/** The ids of the tokens that a conversation becomes with another template than that of the deployment. */
export async function trialBody(
  deployment: string,
  template: string,
  messages: readonly Body[],
  tools: readonly Body[],
  settings: Settings,
  signal: AbortSignal,
): Promise<Body> {
  const preview = await api.send<TemplatePreview>(
    "POST",
    "api/v2/template/preview",
    {
      deployment,
      chat_template: template,
      messages,
      tools: tools.length > 0 ? tools : null,
      ...(settings.thinking === "template" ? {} : { thinking: settings.thinking === "on" }),
    },
    signal,
  );
  const { tokens } = await api.send<{ tokens: number[] }>(
    "POST",
    "inference/tokenize",
    { model: deployment, content: preview.prompt, add_special: false, parse_special: true },
    signal,
  );
  return completionBody(tokens, settings, deployment);
}

// ------------------------------------------------------------------------------------- inside

async function follow(
  first: Answer,
  path: Path,
  body: Body,
  signal: AbortSignal,
  change: (answer: Answer) => void,
  current: () => Answer,
): Promise<void> {
  const text = JSON.stringify(streamed(body));
  const bytes = new Blob([text]).size;
  if (bytes > MAX_BODY_BYTES) {
    const limit = `the limit max_body_bytes is ${MAX_BODY_BYTES}`;
    throw new ApiError(413, `the request has ${bytes} bytes, ${limit}; leave out pictures or earlier turns`);
  }
  const response = await request(`inference/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-request-id": first.requestId },
    body: text,
    signal,
  });
  if (response.body === null) {
    throw new ApiError(0, "the answer has no body");
  }
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        break;
      }
      for (const item of parser.feed(decoder.decode(value, { stream: true }))) {
        change(withItem(current(), item, performance.now()));
      }
      const { content, reasoning } = current();
      if (content.length + reasoning.length > MAX_ANSWER_CHARS) {
        throw new ApiError(0, `the answer is longer than the ${MAX_ANSWER_CHARS} characters that this page keeps`);
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined); // it is over either way; a broken stream cannot be cancelled
  }
  if (isRunning(current())) {
    throw new ApiError(0, "the stream ended before the answer did");
  }
}

/** Null if the balancer has no record of it (any more), or does not keep any. */
async function withRecord(requestId: string): Promise<Answer["record"]> {
  try {
    const { request: view } = await api.get<RequestDetail>(`api/v2/requests/${encodeURIComponent(requestId)}`);
    return recordOf(view);
  } catch (error) {
    if (error instanceof ApiError) {
      return null; // shown as n/a; the answer itself does not depend on it
    }
    throw error;
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
