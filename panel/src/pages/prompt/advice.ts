/** What to do about a request that failed; by status, in one or two sentences. Pure. */

import type { Answer, Failure } from "./answer";

export function adviceFor(failure: Failure): string {
  switch (failure.status) {
    case 0:
      return "The connection broke off. What came so far is kept; ask again when the page is connected.";
    case 400:
      if (failure.text.includes("context size")) {
        return "Begin a new conversation, leave out earlier turns, or raise context_size on the Model page.";
      }
      return failure.field === null
        ? "Correct the request and send it again."
        : `Correct ${failure.field} and send it again.`;
    case 401:
      return "Sign in again: the session has ended or the key was revoked.";
    case 403:
      return "The key of this session may not ask for answers. Use one with the scope inference.";
    case 404:
      return "The deployment is gone, or your key may not use it. Choose another one.";
    case 413:
      return "The request is too large. Leave out pictures or earlier turns.";
    case 422:
      return "The model cannot say anything that fits the schema or grammar. Loosen it.";
    case 429:
      return `Too many requests.${afterwards(failure)}`;
    case 501:
      return "This deployment cannot do it. Choose another one, or change it on the Model page.";
    case 502:
      return "The agent was lost and no other one could go on. Ask again; the Logs page says more.";
    case 503:
      return `The queue is full, or the balancer stops.${afterwards(failure)}`;
    case 504:
      return "No slot or no token came in time. The Problems page says what is wrong, and the request on the Requests page what it waited for.";
    default:
      return "Ask again; the Logs page says more.";
  }
}

function afterwards(failure: Failure): string {
  return failure.retryAfterS === null
    ? " Ask again in a moment."
    : ` Ask again in ${Math.max(1, Math.round(failure.retryAfterS))} s.`;
}

/** How an answer ended, in a few words. */
export function endingOf(answer: Answer): { text: string; tone: "ok" | "warn" | "bad" | "quiet" } {
  if (answer.phase === "stopped") return { text: "stopped by you", tone: "quiet" };
  if (answer.phase === "failed") {
    const status = answer.failure?.status ?? 0;
    return { text: status === 0 ? "broke off" : `failed: ${status}`, tone: "bad" };
  }
  switch (answer.finishReason) {
    case "stop":
      return { text: "complete", tone: "ok" };
    case "length":
      return { text: "cut at max tokens", tone: "warn" };
    case "tool_calls":
      return { text: "calls tools", tone: "ok" };
    case null:
      return { text: answer.phase === "done" ? "complete" : "running", tone: "quiet" };
    default:
      return { text: answer.finishReason, tone: "quiet" };
  }
}
