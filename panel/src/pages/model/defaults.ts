/** What a deployment has that nothing else was said of; the same as the balancer's own defaults. */

import type { Json, Spec } from "./spec";

/** A test of the balancer reads this as JSON and compares. */
const DEFAULTS = /* json */ {
  "parameters": {
    "n_batch": 2048,
    "context_size": 8192,
    "embedding_batch_size": 256,
    "enable_embeddings": false,
    "image_resize_to_fit": 1024,
    "k_cache_dtype": "Q8_0",
    "v_cache_dtype": "Q8_0",
    "min_p": 0.05,
    "n_gpu_layers": 0,
    "penalty_frequency": 0,
    "penalty_last_n": -1,
    "penalty_presence": 0.8,
    "penalty_repeat": 1.1,
    "pooling_type": "Last",
    "temperature": 0.8,
    "top_k": 80,
    "top_p": 0.8
  },
  "rollout": {
    "max_unavailable": 1,
    "max_unavailable_percent": null,
    "min_capacity": 0,
    "canary": 1,
    "min_ready_s": 10,
    "drain_deadline_s": 60,
    "progress_deadline_s": 600,
    "on_failure": "rollback",
    "mixed": "allow",
    "prefetch": true
  }
} /* end */ satisfies Record<string, Json>;

/** A deployment without a model. */
export function newSpec(name: string): Spec {
  return { name, model: "None", projection: "None", replicas: "all", ...structuredClone(DEFAULTS) };
}

export function defaultParameters(): { [name: string]: Json } {
  return { ...DEFAULTS.parameters };
}
