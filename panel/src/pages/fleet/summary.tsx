import { useComputed } from "@preact/signals";
import { formatCount, formatDuration, formatPercent } from "../../core/format";
import { store } from "../../core/store";
import { Figure, Figures } from "../../ui";

/** The whole fleet in one line of figures. */
export function Summary() {
  const rates = useComputed(() => {
    let [prompt, generated, cached, measured] = [0, 0, 0, 0];
    for (const { rates } of store.agents.value.values()) {
      if (rates !== null) {
        prompt += rates.prompt_tokens_per_s;
        generated += rates.generated_tokens_per_s;
        if (rates.cached_ratio !== null) {
          // Weighted by what was computed; agents without work have no say.
          const weight = Math.max(rates.prompt_tokens_per_s, 1e-9);
          cached += rates.cached_ratio * weight;
          measured += weight;
        }
      }
    }
    return { prompt, generated, cached: measured > 0 ? cached / measured : null };
  }).value;
  const status = store.balancer.value;
  const buffer = status?.buffer;
  const slots = status?.slots;
  const isFull = buffer !== undefined && buffer.limit > 0 && buffer.waiting >= buffer.limit;
  return (
    <section class="summary" aria-label="The fleet in figures">
      <Figures>
        <Figure
          label="Slots busy"
          value={slots ? formatCount(slots.busy) : "–"}
          unit={slots ? `of ${formatCount(slots.total)}` : undefined}
          wide
        />
        <Figure
          label="Waiting"
          value={buffer ? formatCount(buffer.waiting) : "–"}
          unit={buffer ? `of ${formatCount(buffer.limit)}` : undefined}
          tone={isFull ? "bad" : buffer && buffer.waiting > 0 ? "warn" : undefined}
          wide
        />
        <Figure label="Generated" value={formatCount(rates.generated)} unit="tok/s" wide />
        <Figure label="Prompts" value={formatCount(rates.prompt)} unit="tok/s" wide />
        <Figure label="From the cache" value={formatPercent(rates.cached)} hint="Prompt tokens that were in the KV cache already" />
        <Figure
          label="Late by"
          value={formatDuration(status?.loop_lag_ms)}
          tone={status && status.loop_lag_ms > 100 ? "warn" : undefined}
          hint="How late the balancer does everything: the worst of the last minutes. Much of it means that it lacks processor time."
        />
      </Figures>
    </section>
  );
}
