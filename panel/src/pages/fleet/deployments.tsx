import { formatAge, formatCount, formatDuration, plural } from "../../core/format";
import { hrefOf } from "../../core/router";
import { store } from "../../core/store";
import { now, second } from "../../core/time";
import type { Deployment, Rollout } from "../../types";
import { Badge, Icon, Meter } from "../../ui";
import { headline } from "../model/rollout_words";
import { sentence } from "../requests/waterfall_rows";

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
  const { phase, held, state } = deployment;
  return (
    <article class="card deployment">
      <header class="card-head">
        <h2 class="truncate">
          <a href={hrefOf("model", [name])}>{name}</a>
        </h2>
        <Badge tone={state.severity}>{state.word}</Badge>
      </header>
      <Meter
        label={`Slots of ${name}`}
        max={Math.max(1, deployment.slots)}
        segments={[{ label: "busy", value: deployment.running, color: "--c-decode" }]}
      />
      <p class="deployment-line">
        <span>
          <b>{formatCount(deployment.running)}</b> of {plural(deployment.slots, "slot")} on {plural(deployment.serving, "agent")}
          {deployment.offline > 0 ? `, ${deployment.offline} offline` : ""}
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
      {state.severity === "ok" || phase === "empty" ? null : (
        <p class={state.severity === "info" ? "rollout-line" : "held"}>
          <Icon name={state.severity === "info" ? "info" : "warning"} />
          <span>
            {sentence(state.sentence)} {sentence(state.follows)}
          </span>
        </p>
      )}
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
  const isStopped = rollout.phase === "paused" || rollout.phase === "aborted" || rollout.phase === "rolling_back";
  return (
    <p class={isStopped ? "held" : "rollout-line"}>
      <Icon name={isStopped ? "warning" : "upload"} />
      <span>
        <a href={hrefOf("model", [name])}>Rollout {rollout.phase.replace("_", " ")}</a>: {headline(rollout)}
        {rollout.reason ? ` ${sentence(rollout.reason)}` : ""}
      </span>
    </p>
  );
}
