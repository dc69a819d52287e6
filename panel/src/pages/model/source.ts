/** Where a model comes from, as text: the forms of the command line, and `org/repo` without `hf:`. */

import type { ModelSource } from "./spec";

/** A repository of a hub, whose file is still to be chosen. */
export interface Repository {
  repo_id: string;
  /** Such as `Q4_K_M`; null if none was named. */
  quantisation: string | null;
  revision: string;
}

export type Reference = { model: ModelSource } | { repository: Repository };

export const FORMS = "a path on the agents, https://…, org/repo, hf:org/repo:Q4_K_M, hf:org/repo/file@revision, or none";

const NONE = "none";
const REVISION = "main";
const PART = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const PUSHED = /^store:\/\/sha256\/[0-9a-f]{64}\/[A-Za-z0-9][A-Za-z0-9._+=@~ ()-]{0,199}$/;

/** What the text names; an Error says what is wrong with it. */
export function parseSource(given: string): Reference {
  const text = given.trim();
  if (text === "") {
    throw new Error(`Name a source: ${FORMS}.`);
  }
  if (text === NONE) {
    return { model: "None" };
  }
  if (text.startsWith("hf:")) {
    return hub(text.slice(3), text);
  }
  const scheme = /^([A-Za-z][A-Za-z0-9+.-]*):/.exec(text)?.[1]?.toLowerCase();
  if ((scheme === "http" || scheme === "https") && text.includes("://")) {
    return { model: url(text) };
  }
  if (scheme === "agent") {
    return { model: onAgent(text) };
  }
  if (text.startsWith("store://")) {
    if (!PUSHED.test(text)) {
      throw new Error(`“${text}” is not store://sha256/HEX/NAME, as a push prints it.`);
    }
    return { model: { Url: { url: text } } };
  }
  if (text.includes("://")) {
    throw new Error(`${scheme ?? text} is no way to get files: write ${FORMS}.`);
  }
  if (text.startsWith("/")) {
    return { model: { LocalToAgent: text } };
  }
  const [place = ""] = text.split(/[:@]/);
  const parts = place.split("/");
  if (parts.length >= 2 && parts.slice(0, 2).every((part) => PART.test(part))) {
    return hub(text, text);
  }
  throw new Error(
    `“${text}” is no absolute path, and agents would look for it in folders of their own: write ${FORMS}.`,
  );
}

/** The text that names a model, as `parseSource` reads it. */
export function sourceText(model: ModelSource): string {
  if (typeof model === "string") {
    return NONE;
  }
  if ("LocalToAgent" in model) {
    return model.LocalToAgent;
  }
  if ("Url" in model) {
    return model.Url.url;
  }
  const { repo_id, filename, revision } = model.HuggingFace;
  return `hf:${repo_id}/${filename}@${revision}`;
}

/** The file's name, for lists: what people call a model. */
export function shortName(model: ModelSource): string {
  if (typeof model === "string") {
    return "no model";
  }
  if ("HuggingFace" in model) {
    return lastPart(model.HuggingFace.filename);
  }
  const text = sourceText(model).split(/[?#]/)[0] ?? "";
  return lastPart(text) || text;
}

/** Where it lies, without the file's name. */
export function placeOf(model: ModelSource): string {
  if (typeof model === "string") {
    return "";
  }
  if ("HuggingFace" in model) {
    const { repo_id, revision } = model.HuggingFace;
    return `${repo_id} @ ${/^[0-9a-f]{40}$/.test(revision) ? revision.slice(0, 10) : revision}`;
  }
  if ("Url" in model) {
    return model.Url.url.startsWith("store://") ? "the balancer's model store" : hostOf(model.Url.url);
  }
  return model.LocalToAgent.slice(0, model.LocalToAgent.lastIndexOf("/")) || "/";
}

function hub(place: string, whole: string): Reference {
  const at = place.lastIndexOf("@");
  const revision = at < 0 ? REVISION : place.slice(at + 1);
  const [organisation = "", second = "", ...rest] = (at < 0 ? place : place.slice(0, at)).split("/");
  const filename = rest.join("/");
  if (organisation && second && filename && revision) {
    return { model: { HuggingFace: { filename, repo_id: `${organisation}/${second}`, revision } } };
  }
  const colon = second.indexOf(":");
  const repository = colon < 0 ? second : second.slice(0, colon);
  const quantisation = colon < 0 ? null : second.slice(colon + 1);
  const isFile = repository.toLowerCase().endsWith(".gguf"); // it is the organisation that is missing
  if (rest.length > 0 || isFile || quantisation === "" || !organisation || !repository || !revision) {
    throw new Error(
      `“${whole}” is not hf:org/repo, hf:org/repo:Q4_K_M, hf:org/repo/file or hf:org/repo/file@revision.`,
    );
  }
  return { repository: { repo_id: `${organisation}/${repository}`, quantisation, revision } };
}

function url(text: string): ModelSource {
  let parsed: URL;
  try {
    parsed = new URL(text);
  } catch {
    throw new Error(`“${text}” is no URL: write https://host/path/model.gguf.`);
  }
  const segments = parsed.pathname.replace(/^\/+|\/+$/g, "").split("/");
  const isPage = segments.length >= 5 && ["blob", "resolve"].includes(segments[2] ?? "") && segments.every(Boolean);
  if (parsed.host === "huggingface.co" && isPage) {
    const [organisation = "", repository = "", , revision = "", ...file] = segments.map(decoded);
    return { HuggingFace: { filename: file.join("/"), repo_id: `${organisation}/${repository}`, revision } };
  }
  return { Url: { url: text } };
}

function onAgent(text: string): ModelSource {
  const rest = text.slice(text.indexOf(":") + 1);
  if (rest.startsWith("//") && !rest.startsWith("///")) {
    throw new Error(`“${text}” would lose its first folder: write agent:${rest.slice(1)}.`);
  }
  const path = decoded(rest.replace(/^\/\/(?=\/)/, ""));
  if (!path.startsWith("/")) {
    throw new Error(`“${text}” is no absolute path: write agent:/path.`);
  }
  return { LocalToAgent: path };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a % that is meant as one
  }
}

function lastPart(path: string): string {
  return decoded(path.slice(path.lastIndexOf("/") + 1));
}

function hostOf(text: string): string {
  try {
    return new URL(text).host;
  } catch {
    return text;
  }
}
