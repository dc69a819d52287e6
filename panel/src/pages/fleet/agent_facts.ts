/** What an agent's fields mean, in words. Pure. */

import { formatBytes, formatDuration } from "../../core/format";
import type { Agent, AgentIssue } from "../../types";
import type { Tone } from "../../ui";

export interface AgentState {
  tone: Tone;
  word: string;
  /** The reason, or how far it is; empty if there is nothing to add. */
  detail: string;
}

/** What the balancer says of the agent; how long an ejection lasts is counted down here. */
export function stateOf(agent: Agent, now_ms: number): AgentState {
  const { word, severity, sentence } = agent.state;
  if (agent.ejected_until_ms !== null && agent.ejected_until_ms > now_ms) {
    const left_s = Math.ceil((agent.ejected_until_ms - now_ms) / 1000);
    return { tone: "bad", word: "ejected", detail: `gets requests again in ${left_s} s` };
  }
  return { tone: severity, word, detail: sentence };
}

/** How many agents these connections are of: one with several deployments has one for each. */
export function machinesIn(agents: readonly Agent[]): number {
  return new Set(agents.map((agent) => agent.host)).size;
}

/** When the agent tries again what failed. */
export function nextAttempt(agent: Agent): string {
  switch (agent.state_application_status) {
    case "AttemptedAndRetrying":
      return "The agent tries again by itself.";
    case "Stuck":
      return "The agent tries again by itself, with long pauses, since it has failed for some time.";
    case "AttemptedAndNotAppliable":
      return "It is not tried again until the model or its settings change.";
    default:
      return "The agent goes on with what it serves.";
  }
}

export interface IssueText {
  title: string;
  /** What it is about: a path, an error of the template. */
  subject: string;
  advice: string;
}

const ISSUES: Readonly<Record<string, readonly [title: string, advice: string]>> = {
  CacheCannotAcquireLock: ["The model cache is locked", "Another process is using the cache. It goes on as soon as that process has ended."],
  CacheDirectoryIsNotWritable: ["The model cache cannot be written", "Give the agent's user write access to its cache directory."],
  CacheStorageIsFull: ["The disk of the model cache is full", "Free space on the agent, with `paddler-trio model prune` for example."],
  ChatTemplateDoesNotCompile: ["The chat template is no valid Jinja", "Correct the template on the page Model."],
  DownloadInterrupted: ["The download broke off", "It goes on where it stopped. If that repeats, look at the network of the agent."],
  DownloadServerDeniedAccess: ["The server denied access", "Start the agent with --hf-token-file, and check that its token may read this model."],
  DownloadServerErrored: ["The server failed", "The fault is at the server. The download goes on when it answers again."],
  DownloadServerIsUnreachable: ["The server cannot be reached", "Check the agent's network, name service and proxy."],
  DownloadServerRejectedRequest: ["The server rejected the request", "Check the address of the model on the page Model."],
  DownloadUrlIsMalformed: ["The address of the model is malformed", "Correct it on the page Model."],
  HuggingFaceCannotAcquireLock: ["Another process is fetching this file", "It goes on as soon as that process has ended."],
  HuggingFaceModelDoesNotExist: ["Hugging Face has no such model", "Check repository, revision and file on the page Model."],
  HuggingFacePermissions: ["Hugging Face refuses access", "Accept the model's terms there, and start the agent with --hf-token-file."],
  ModelCacheIsCorrupted: ["The file in the cache is damaged", "Remove it with `paddler-trio model prune`; it is fetched again then."],
  ModelCannotBeLoaded: ["llama.cpp cannot load the model", "The detail above has the reason. A smaller quantization or context may fit."],
  ModelDoesNotExistAtUrl: ["There is nothing at this address", "Correct the address on the page Model."],
  ModelFileDoesNotExist: ["The file does not exist on the agent", "Put it there, or choose a source that the agent can fetch."],
  MultimodalProjectionCannotBeLoaded: ["The projection cannot be loaded", "Choose the projection that belongs to this model."],
  SlotCannotStart: ["A slot cannot start", "Fewer slots, or a smaller context, need less memory."],
  UnableToFindChatTemplate: ["The model has no chat template", "Set one on the page Model."],
};

export function issueText(issue: AgentIssue): IssueText {
  const [name = "Unknown", fields = {}] = Object.entries(issue)[0] ?? [];
  const [title, advice] = ISSUES[name] ?? [wordsOf(name), "Look at the agent's log."];
  const path = fields["model_path"];
  const model = typeof path === "object" && path !== null ? (path as { model_path?: unknown }).model_path : path;
  const subject = [fields["error"], model, fields["lock_path"]].filter((each) => typeof each === "string");
  return { title, subject: subject.join(" · "), advice };
}

/** `SlotCannotStart` as words. */
function wordsOf(name: string): string {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The file's name; null without a model. */
export function modelName(path: string | null): string | null {
  return path === null ? null : (path.split(/[/\\]/).pop() ?? path);
}

/** Whether the agent serves what it is meant to serve. */
export function revisionOf(agent: Agent): { word: string; isOld: boolean } | null {
  if (agent.served_state === null) {
    return null;
  }
  const isOld = agent.wanted_state !== null && agent.wanted_state !== agent.served_state;
  return { word: agent.revision === null ? "an unknown revision" : `revision ${agent.revision}`, isOld };
}

/** `7.1 of 13.5 GiB · 45.8 MiB/s · 2 min 23 s left`. */
export function downloadText(agent: Agent): string {
  const parts = [
    agent.download_indeterminate || agent.download_total === 0
      ? formatBytes(agent.download_current)
      : `${formatBytes(agent.download_current)} of ${formatBytes(agent.download_total)}`,
  ];
  const download = agent.download;
  if (download?.bytes_per_s) {
    parts.push(`${formatBytes(download.bytes_per_s)}/s`);
  }
  if (download && download.remaining_s !== null) {
    parts.push(`${formatDuration(download.remaining_s * 1000)} left`);
  }
  if (download && download.file_count > 1) {
    parts.push(`file ${download.file_index} of ${download.file_count}`);
  }
  return parts.join(" · ");
}

/** What an agent is found by. */
export function matches(agent: Agent, words: readonly string[]): boolean {
  if (words.length === 0) {
    return true;
  }
  const text = [
    agent.label,
    agent.id,
    agent.deployment,
    agent.model_path ?? "",
    agent.phase ?? "",
    agent.protocol,
    agent.is_drained ? "drained" : "",
    agent.issues.length ? "issues" : "",
    ...Object.entries(agent.labels).map(([name, value]) => `${name}=${value}`),
  ]
    .join(" ")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}
