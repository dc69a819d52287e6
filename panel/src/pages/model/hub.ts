/** The files of a repository of the hub: which one to take, and what belongs to it. */

import type { HubFile, HubModels } from "../../types";
import type { Repository } from "./source";

export type Quantization = HubModels["quantizations"][number];

/** The quantisation that a source names, or the repository's default; undefined if it has none such. */
export function chosenQuantization(models: HubModels, wanted: Repository): Quantization | undefined {
  const name = wanted.quantisation?.toLowerCase();
  return name === undefined
    ? models.quantizations.find((each) => each.is_default)
    : models.quantizations.find((each) => each.name.toLowerCase() === name);
}

/** The source of a file at the commit that was looked at, so that it stays the same file. */
export function hubSource(models: HubModels, path: string): string {
  return `hf:${models.repo}/${path}@${models.commit || models.revision}`;
}

/**
 * The projection that belongs to a model: in the deepest folder above it, with the closest number of bits.
 *
 * The rule of the command line, and of llama.cpp's `-hf`.
 */
export function projectionFor(model: string, projections: readonly HubFile[]): HubFile | null {
  const folder = model.split("/").slice(0, -1);
  let best: { depth: number; distance: number; file: HubFile } | null = null;
  for (const file of projections) {
    const its = file.path.split("/").slice(0, -1);
    if (!its.every((part, place) => part === folder[place])) {
      continue;
    }
    const [depth, distance] = [its.length, Math.abs(bits(file.path) - bits(model))];
    if (best === null || depth > best.depth || (depth === best.depth && distance < best.distance)) {
      best = { depth, distance, file };
    }
  }
  return best?.file ?? null;
}

function bits(path: string): number {
  const stem = path.replace(/\.gguf$/, "").replace(/-\d{5}-of-\d{5}$/, "");
  const tag = /[-.]([A-Za-z0-9_]+)$/.exec(stem)?.[1] ?? "";
  return Number(/\d{1,4}/.exec(tag)?.[0] ?? 0);
}
