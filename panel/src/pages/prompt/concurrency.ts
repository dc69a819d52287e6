/** Several streams of one prompt at the same time, and what they came to. Their figures are pure. */

import { ApiError, request } from "../../core/api";
import { newRequestId } from "./answer_run";
import type { Body } from "./request_body";
import { SseParser } from "./sse_parser";

/** The balancer's `max_choices`, unless its operator changed it. */
export const MOST_STREAMS = 32;
export const MOST_TOKENS = 2048;

/** One stream; times are in milliseconds since all of them were asked for. */
export interface Stream {
  readonly firstMs: number | null;
  readonly lastMs: number | null;
  /** Pieces of text: a token each, or several that came together. */
  readonly pieces: number;
}

export interface Run {
  readonly streams: readonly Stream[];
  /** Of all of them, as the balancer counts; null until it has said. */
  readonly tokens: number | null;
  readonly endedMs: number | null;
  readonly problem: string | null;
}

export interface Figures {
  readonly begun: number;
  readonly firstMs: { readonly middle: number; readonly worst: number } | null;
  readonly tokensPerS: number | null;
  readonly perStream: number | null;
}

export function newRun(streams: number): Run {
  const none: Stream = { firstMs: null, lastMs: null, pieces: 0 };
  return { streams: Array.from({ length: streams }, () => none), tokens: null, endedMs: null, problem: null };
}

/** What one event of the stream changes. */
export function withEvent(run: Run, data: string, nowMs: number): Run {
  if (data === "[DONE]") {
    return { ...run, endedMs: nowMs };
  }
  const event = JSON.parse(data) as {
    choices?: { index?: number; delta?: { content?: string | null; reasoning_content?: string | null } }[];
    usage?: { completion_tokens?: number } | null;
    error?: { message?: string };
  };
  if (event.error) {
    return { ...run, endedMs: nowMs, problem: event.error.message ?? "it failed" };
  }
  const streams = [...run.streams];
  for (const { index = 0, delta } of event.choices ?? []) {
    const before = streams[index];
    if (before !== undefined && (delta?.content || delta?.reasoning_content)) {
      streams[index] = { firstMs: before.firstMs ?? nowMs, lastMs: nowMs, pieces: before.pieces + 1 };
    }
  }
  return { ...run, streams, tokens: event.usage?.completion_tokens ?? run.tokens };
}

/** Figures of a run that has ended, or of as much as there is. */
export function figuresOf(run: Run): Figures {
  const firsts = run.streams.flatMap((each) => (each.firstMs === null ? [] : [each.firstMs])).sort((a, b) => a - b);
  const lasts = run.streams.flatMap((each) => (each.lastMs === null ? [] : [each.lastMs]));
  const first = firsts[0];
  const tookMs = first === undefined ? 0 : Math.max(...lasts) - first;
  const total = run.tokens !== null && tookMs > 0 ? (run.tokens * 1000) / tookMs : null;
  const alone = run.streams
    .flatMap(({ firstMs, lastMs, pieces }) =>
      firstMs !== null && lastMs !== null && lastMs > firstMs ? [((pieces - 1) * 1000) / (lastMs - firstMs)] : [],
    )
    .sort((a, b) => a - b);
  return {
    begun: firsts.length,
    firstMs:
      first === undefined ? null : { middle: middleOf(firsts), worst: firsts[firsts.length - 1] ?? first },
    tokensPerS: total,
    perStream: alone.length === 0 ? null : middleOf(alone),
  };
}

function middleOf(sorted: readonly number[]): number {
  return sorted[Math.floor((sorted.length - 1) / 2)] ?? 0;
}

/** Run it: one request with so many choices, each of which takes a slot of its own. */
export async function runStreams(
  body: Body,
  streams: number,
  tokens: number,
  signal: AbortSignal,
  show: (run: Run) => void,
): Promise<void> {
  const beganMs = performance.now();
  let run = newRun(streams);
  show(run);
  try {
    const response = await request("inference/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", "x-request-id": newRequestId() },
      body: JSON.stringify({
        ...body,
        n: streams,
        max_tokens: tokens,
        ignore_eos: true,
        stream: true,
        stream_options: { include_usage: true },
      }),
      signal,
    });
    const reader = response.body?.getReader();
    if (!reader) {
      throw new ApiError(0, "the answer has no body");
    }
    const parser = new SseParser();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        break;
      }
      for (const item of parser.feed(decoder.decode(value, { stream: true }))) {
        if (item.kind === "data") {
          run = withEvent(run, item.data, performance.now() - beganMs);
        }
      }
      show(run);
    }
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    run = { ...run, problem: signal.aborted ? "It was stopped." : text };
  }
  show({ ...run, endedMs: run.endedMs ?? performance.now() - beganMs });
}
