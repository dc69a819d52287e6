/** A request as a command or a program that sends the same to the inference port. Pure. */

import { PARAMETERS } from "./parameters";
import type { Body } from "./request_body";

export interface Target {
  /** Such as `http://10.0.0.5:8061`, without a slash at the end. */
  readonly address: string;
  readonly path: "/v1/chat/completions" | "/v1/completions";
  readonly needsKey: boolean;
}

/** What the environment calls the key in what is copied; no key is ever part of it. */
export const KEY_VARIABLE = "PADDLER_API_KEY";

/** A command for a POSIX shell. The body is a here-document: no quoting, no limit on its size. */
export function asCurl(body: Body, target: Target): string {
  const key = target.needsKey ? ` \\\n  -H "Authorization: Bearer $${KEY_VARIABLE}"` : "";
  return (
    `curl --no-buffer ${target.address}${target.path} \\\n` +
    `  -H 'Content-Type: application/json'${key} \\\n` +
    `  --data-binary @- <<'JSON'\n${JSON.stringify({ ...body, stream: true }, null, 2)}\nJSON\n`
  );
}

const OPENAI_FIELDS = new Set([
  "model",
  "messages",
  "prompt",
  "stop",
  "tools",
  "tool_choice",
  "response_format",
  ...PARAMETERS.filter((parameter) => parameter.isOpenAi).map((parameter) => parameter.name),
]);

/** A program for OpenAI's own package; fields that it does not have go into `extra_body`. */
export function asPython(body: Body, target: Target): string {
  const isChat = target.path === "/v1/chat/completions";
  const known = Object.entries(body).filter(([name]) => OPENAI_FIELDS.has(name));
  const others = Object.entries(body).filter(([name]) => !OPENAI_FIELDS.has(name));
  if (!isChat && body.response_format !== undefined) {
    others.push(...known.filter(([name]) => name === "response_format"));
  }
  const own = known.filter(([name]) => isChat || name !== "response_format");
  const key = target.needsKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"';
  const lines = [
    ...(target.needsKey ? ["import os", ""] : []),
    "import openai",
    "",
    `client = openai.OpenAI(base_url=${pythonOf(`${target.address}/v1`, 0)}, api_key=${key})`,
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...own.map(([name, value]) => `    ${name}=${pythonOf(value, 1)},`),
    ...(others.length > 0 ? [`    extra_body=${pythonOf(Object.fromEntries(others), 1)},`] : []),
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    isChat
      ? '        print(choice.delta.content or "", end="", flush=True)'
      : '        print(choice.text, end="", flush=True)',
  ];
  return `${lines.join("\n")}\n`;
}

/** A JSON value as a Python literal. */
export function pythonOf(value: unknown, depth: number): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return pythonText(value);
  const inner = "    ".repeat(depth + 1);
  const outer = "    ".repeat(depth);
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]";
    if (value.every((each) => typeof each === "number")) return `[${value.join(", ")}]`;
    return `[\n${value.map((each) => `${inner}${pythonOf(each, depth + 1)},\n`).join("")}${outer}]`;
  }
  const entries = Object.entries(value as Record<string, unknown>);
  if (entries.length === 0) return "{}";
  const members = entries.map(
    ([name, each]) => `${inner}${pythonText(name)}: ${pythonOf(each, depth + 1)},\n`,
  );
  return `{\n${members.join("")}${outer}}`;
}

/** The base URL that a client of the inference port uses. A wildcard address is no destination. */
export function inferenceAddress(addresses: readonly string[], pageHost: string, isEncrypted: boolean): string | null {
  const address = addresses[0];
  if (address === undefined) return null;
  const scheme = isEncrypted ? "https" : "http";
  const parts = /^(.*):(\d+)$/.exec(address);
  if (parts === null) return `${scheme}://${address}`;
  const [host, port] = [parts[1] ?? "", parts[2] ?? ""];
  const isWildcard = ["0.0.0.0", "[::]", "::", "*", ""].includes(host);
  return `${scheme}://${isWildcard ? pageHost : host}:${port}`;
}

/** A JSON string is a Python string, but for surrogates that stand alone. */
function pythonText(text: string): string {
  return JSON.stringify(text).replaceAll("\u007f", "\\u007f");
}
