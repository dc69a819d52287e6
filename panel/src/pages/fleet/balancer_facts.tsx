import { formatAge, formatDate, formatDuration, plural } from "../../core/format";
import { store } from "../../core/store";
import { second } from "../../core/time";
import { Card, Facts } from "../../ui";

const NAMES = {
  inference: "Inference and APIs",
  openai: "OpenAI API alone",
  ollama: "Ollama API alone",
  management: "Management",
  panel: "This panel",
  statsd: "StatsD",
} as const;

/** How the balancer was started. */
export function BalancerFacts() {
  second.value;
  const status = store.balancer.value;
  if (status === null) {
    return null;
  }
  const started = new Date(status.started);
  const names = Object.keys(NAMES) as (keyof typeof NAMES)[];
  return (
    <Card title="Balancer">
      <div class="balancer-facts">
        <Facts
          rows={names.map((name) => [
            NAMES[name],
            status.addresses[name]?.length ? <span class="mono">{status.addresses[name].join(", ")}</span> : <span class="muted">{name === "openai" || name === "ollama" ? "no port of its own" : "off"}</span>,
          ])}
        />
        <Facts
          rows={[
            ["Version", status.version],
            ["Running for", <span title={formatDate(started)}>{formatAge(Date.now() - started.getTime())}</span>],
            ["Queue", `up to ${plural(status.buffer.limit, "request")}, ${formatDuration(status.buffer.timeout_ms)} each`],
            ["Fleet", `revision ${status.revision}`],
          ]}
        />
      </div>
    </Card>
  );
}
