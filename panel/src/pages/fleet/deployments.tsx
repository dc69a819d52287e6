import { formatAge, formatCount, formatDuration, plural } from "../../core/format";
import { hrefOf } from "../../core/router";
import { store } from "../../core/store";
import { now, second } from "../../core/time";
import type { Deployment, Rollout } from "../../types";
import { Badge, Icon, Meter, type Tone } from "../../ui";

const TONES: Readonly<Record<string, Tone>> = {
  serving: "ok",
  updating: "info",
  loading: "info",
  waiting: "warn",
  failed: "bad",
  unloaded: "quiet",
  empty: "quiet",
};
const WORDS: Readonly<Record<string, string>> = { waiting: "no agent for it", empty: "no model" };
/** Rollouts that are over need no line here. */
const OVER = new Set(["complete", "rolled_back"]);

/** What is served, with the queue of each. */
export function Deployments() {
  const deployments = [...store.deployments.value].sort(
    ([a], [b]) => Number(b === "default") - Number(a === "default") || a.localeCompare(b),
  );
  if (deployments.length === 0) {
    return null;
  }
  return (
    <section aria-label="Deployments">
      <ul class="deployments">
        {deployments.map(([name, deployment]) => (
          <li key={name}>
            <DeploymentCard name={name} deployment={deployment} rollout={store.rollouts.value.get(name)} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function DeploymentCard({
  name,
  deployment,
  rollout,
}: {
  name: string;
  deployment: Deployment;
  rollout: Rollout | undefined;
}) {
  const { phase, held } = deployment;
  return (
    <article class="card deployment">
      <header class="card-head">
        <h2 class="truncate">
          <a href={hrefOf("model", [name])}>{name}</a>
        </h2>
        <Badge tone={TONES[phase] ?? "quiet"}>{WORDS[phase] ?? phase}</Badge>
      </header>
      <Meter
        label={`Slots of ${name}`}
        max={Math.max(1, deployment.slots)}
        segments={[{ label: "busy", value: deployment.running, color: "--c-decode" }]}
      />
      <p class="deployment-line">
        <span>
          <b>{formatCount(deployment.running)}</b> of {plural(deployment.slots, "slot")} on {plural(deployment.serving, "agent")}
        </span>
        <span class={deployment.waiting > 0 ? "waits" : "muted"}>
          {deployment.waiting > 0 ? (
            <>
              <b>{formatCount(deployment.waiting)}</b> waiting
              {deployment.oldest_wait_ms === null ? "" : `, longest ${formatAge(deployment.oldest_wait_ms)}`}
            </>
          ) : (
            "nothing waits"
          )}
        </span>
      </p>
      {deployment.aliases.length ? <p class="muted truncate">also {deployment.aliases.join(", ")}</p> : null}
      {held ? <Held reason={held.reason} until_ms={held.until_ms} /> : null}
      {rollout && !OVER.has(rollout.phase) ? <RolloutLine rollout={rollout} name={name} /> : null}
      {phase === "empty" ? (
        <p>
          <a href={hrefOf("model", [name])}>Choose a model</a>
        </p>
      ) : null}
    </article>
  );
}

function Held({ reason, until_ms }: { reason: string; until_ms: number | null }) {
  second.value;
  const left_ms = until_ms === null ? null : until_ms - now();
  return (
    <p class="held">
      <Icon name="pause" />
      <span>
        Requests are held: {reason}
        {left_ms !== null && left_ms > 0 ? `, for ${formatDuration(Math.ceil(left_ms / 1000) * 1000)} at most` : ""}
      </span>
    </p>
  );
}

function RolloutLine({ rollout, name }: { rollout: Rollout; name: string }) {
  const done = rollout.agents.filter((agent) => agent.phase === "serving").length;
  const isStopped = rollout.phase === "paused" || rollout.phase === "aborted" || rollout.phase === "rolling_back";
  return (
    <p class={isStopped ? "held" : "rollout-line"}>
      <Icon name={isStopped ? "warning" : "upload"} />
      <span>
        <a href={hrefOf("model", [name])}>Rollout {rollout.phase.replace("_", " ")}</a>: {done} of {plural(rollout.agents.length, "agent")}
        {rollout.reason ? `. ${rollout.reason}` : ""}
      </span>
    </p>
  );
}
