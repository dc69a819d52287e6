/** The deployments that can be asked, and why none can. */

import { computed, signal } from "@preact/signals";
import { ApiError, api } from "../../core/api";
import { store } from "../../core/store";
import type { FleetDocument } from "../../types";

/** One entry of `/v1/models`, and of the fleet. */
export interface Model {
  /** Of the deployment: what a request asks for. */
  readonly name: string;
  /** How it is listed: `default` is called as its file is. */
  readonly id: string;
  readonly status: { readonly value: string; readonly failed?: boolean };
  readonly meta: { readonly n_ctx?: number | null; readonly n_params?: number | null } | null;
  readonly sees: boolean;
  /** Its parameters enable embeddings; only agents of ours then generate, too. */
  readonly embeds: boolean;
}

interface ModelList {
  data: Omit<Model, "name" | "sees" | "embeds">[];
  models?: { name: string; capabilities?: string[] }[];
}

/** Null until the first answer. */
export const models = signal<readonly Model[] | null>(null);
export const modelsProblem = signal<unknown>(null);

/** Ask again what can be asked. */
export async function loadModels(): Promise<void> {
  try {
    const [list, fleet] = await Promise.all([
      api.get<ModelList>("inference/v1/models"),
      api.get<FleetDocument>("api/v2/fleet"),
    ]);
    const { deployments } = fleet.revision.state;
    const names = new Set(deployments.flatMap((each) => [each["name"], ...presetsOf(each)]));
    const embeds = new Set(deployments.filter(isForEmbeddings).map((each) => each["name"]));
    models.value = list.data.map((model) => {
      const described = list.models?.find((each) => each.name === model.id);
      const name = names.has(model.id) ? model.id : "default";
      return {
        ...model,
        name,
        sees: described?.capabilities?.includes("multimodal") === true,
        embeds: embeds.has(name),
      };
    });
    modelsProblem.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) {
      throw error;
    }
    modelsProblem.value = error;
  }
}

/** Why nothing can be asked now, and what to do; null if it can. */
export const obstacle = computed<{ title: string; advice: string; link: string } | null>(() => {
  const known = models.value;
  if (known === null) {
    return null;
  }
  if (known.length === 0) {
    return {
      title: "No model yet",
      advice: "Choose what the fleet serves on the Model page; then a prompt can be tried here.",
      link: "#/model",
    };
  }
  const oursServe = [...store.agents.value.values()].some((agent) => agent.protocol === "paddler-trio.1");
  if (known.every((model) => model.embeds) && !oursServe) {
    return {
      title: "No deployment generates text",
      advice:
        "Every deployment has enable_embeddings, and agents of Paddler then answer nothing else. " +
        "Turn it off on the Model page, or add an agent of paddler-trio.",
      link: "#/model",
    };
  }
  return null;
});

function presetsOf(deployment: Record<string, unknown>): unknown[] {
  const presets = deployment["presets"];
  return Array.isArray(presets) ? presets.map((each: Record<string, unknown>) => each["name"]) : [];
}

function isForEmbeddings(deployment: Record<string, unknown>): boolean {
  const parameters = deployment["parameters"];
  return (
    typeof parameters === "object" &&
    parameters !== null &&
    (parameters as Record<string, unknown>)["enable_embeddings"] === true
  );
}
