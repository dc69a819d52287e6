/** Tokens a second of every agent over the last minute, as far as this page has watched them. */

import { effect, signal } from "@preact/signals";
import { store } from "../../core/store";
import { second } from "../../core/time";

const SAMPLES = 60;

const history = new Map<string, number[]>();

/** Grows with each sample. */
export const sampled = signal(0);

/** The samples of an agent, one a second, oldest first. */
export function ratesOf(agent: number): readonly number[] {
  return history.get(String(agent)) ?? [];
}

/** Take samples until the returned function is called; what was sampled before is forgotten. */
export function sampleRates(): () => void {
  history.clear();
  return effect(() => {
    second.value;
    const agents = store.agents.peek();
    for (const key of history.keys()) {
      if (!agents.has(key)) {
        history.delete(key);
      }
    }
    for (const [key, agent] of agents) {
      const samples = history.get(key) ?? [];
      samples.push(agent.rates?.generated_tokens_per_s ?? 0);
      if (samples.length > SAMPLES) {
        samples.shift();
      }
      history.set(key, samples);
    }
    sampled.value = sampled.peek() + 1;
  });
}
