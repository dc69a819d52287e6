/** Requests to the balancer below the page's own address, so any path prefix works. */

import { signal } from "@preact/signals";
import type { Info, Session } from "../types";

/** An answer that is no success; `status` 0: there was no answer. `field` is the path of what was wrong in the body. */
export class ApiError extends Error {
  readonly status: number;
  readonly text: string;
  readonly field: string | undefined;
  /** Seconds after which another try makes sense. */
  readonly retryAfter_s: number | undefined;
  /** The JSON of the answer, undefined if it was none. */
  readonly body: unknown;

  constructor(
    status: number,
    text: string,
    more: { field?: string | undefined; retryAfter_s?: number | undefined; body?: unknown } = {},
  ) {
    super(text);
    this.name = "ApiError";
    this.status = status;
    this.text = text;
    this.field = more.field;
    this.retryAfter_s = more.retryAfter_s;
    this.body = more.body;
  }
}

/** Null until the first answer. */
export const session = signal<Session | null>(null);
/** Null until the first answer. */
export const info = signal<Info | null>(null);

const ANSWER_MS = 60_000;
const MAX_TEXT_CHARS = 2000;

/** Where a relative path such as `api/v2/fleet` lies. */
export function addressOf(path: string): string {
  return new URL(path, new URL(".", location.href)).href;
}

/**
 * `fetch` below the page, with the CSRF token; raises {@link ApiError} for an answer that is no success.
 *
 * Signing out follows a 401. There is no deadline: `init.signal` ends it.
 */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const csrf = session.value?.csrf;
  if (csrf && init.method !== undefined && init.method !== "GET") {
    headers.set("X-CSRF-Token", csrf);
  }
  let response: Response;
  try {
    response = await fetch(addressOf(path), {
      credentials: "same-origin",
      cache: "no-store",
      ...init,
      headers,
    });
  } catch (error) {
    throw withoutAnswer(error, "The balancer cannot be reached.");
  }
  if (!response.ok) {
    throw await errorOf(response);
  }
  return response;
}

async function json<T>(path: string, init: RequestInit): Promise<T> {
  const response = await request(path, { signal: AbortSignal.timeout(ANSWER_MS), ...init });
  let text: string;
  try {
    text = await response.text();
  } catch (error) {
    throw withoutAnswer(error, "The balancer broke off its answer.");
  }
  if (text === "") {
    return undefined as T; // 204
  }
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new ApiError(response.status, `The answer of ${path} is no JSON.`);
  }
}

export const api = {
  /** The JSON at a path such as `api/v2/fleet`. */
  get<T>(path: string, signal?: AbortSignal): Promise<T> {
    return json<T>(path, signal ? { signal } : {});
  },

  /** Send a body as JSON; undefined for an answer without content. */
  send<T = void>(
    method: "POST" | "PUT" | "DELETE" | "PATCH",
    path: string,
    body?: unknown,
    signal?: AbortSignal,
  ): Promise<T> {
    return json<T>(path, {
      method,
      ...(signal ? { signal } : {}),
      ...(body === undefined
        ? {}
        : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
    });
  },
};

/** Ask who is signed in; what {@link session} shows afterwards. */
export async function loadSession(): Promise<Session> {
  const found = await api.get<Session>("session");
  session.value = found;
  return found;
}

/** Raises ApiError: 401 for a key that opens nothing here, 429 after too many of them. */
export async function signIn(key: string): Promise<void> {
  session.value = await api.send<Session>("POST", "session", { key });
}

export async function signOut(): Promise<void> {
  await api.send("DELETE", "session");
  await loadSession();
}

export async function loadInfo(): Promise<Info> {
  const found = await api.get<Info>("info");
  info.value = found;
  return found;
}

/** Whether pages may show data. */
export function isSignedIn(found: Session | null): boolean {
  return found !== null && (!found.required || found.signed_in);
}

/** Why there is no whole answer; who gave the request up gets their own error back. */
function withoutAnswer(error: unknown, words: string): unknown {
  if (error instanceof DOMException && error.name === "AbortError") {
    return error;
  }
  const isLate = error instanceof DOMException && error.name === "TimeoutError";
  return new ApiError(0, isLate ? "The balancer did not answer in time." : words);
}

async function errorOf(response: Response): Promise<ApiError> {
  const known = session.value;
  if (response.status === 401 && known !== null) {
    session.value = { ...known, required: true, signed_in: false, csrf: null };
  }
  const text = await response.text().catch(() => "");
  const wait = Number(response.headers.get("Retry-After") ?? "");
  return errorFrom(response.status, text, Number.isFinite(wait) && wait > 0 ? wait : undefined);
}

/** The error that an answer's body says: `{"error": "…" | {"message": "…"}, "field"?: "…"}`, or plain text. */
export function errorFrom(status: number, text: string, retryAfter_s?: number): ApiError {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const fields = asRecord(body);
  const inner = asRecord(fields?.["error"]);
  const said = [fields?.["error"], inner?.["message"], fields?.["message"], fields?.["detail"]].find(
    (each): each is string => typeof each === "string" && each !== "",
  );
  const field = [fields?.["field"], inner?.["field"], inner?.["param"]].find(
    (each): each is string => typeof each === "string" && each !== "",
  );
  const plain = body === undefined && !text.trimStart().startsWith("<") ? text.trim() : "";
  const words = (said ?? plain) || sentenceFor(status);
  return new ApiError(status, words.slice(0, MAX_TEXT_CHARS), { field, retryAfter_s, body });
}

function sentenceFor(status: number): string {
  switch (status) {
    case 401:
      return "Please sign in.";
    case 403:
      return "This key is not allowed to do that.";
    case 404:
      return "That does not exist (any more).";
    case 429:
      return "Too many tries. Please wait a moment.";
    case 502:
    case 504:
      return "What stands before the balancer gets no answer from it.";
    case 503:
      return "The balancer cannot do that now.";
    default:
      return `The balancer answered with status ${status}.`;
  }
}

function asRecord(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;
}
