/** What is desired, how far it is carried out, and what is on its way. */

import { useState } from "preact/hooks";
import { formatDate } from "../../core/format";
import { hrefOf, navigate } from "../../core/router";
import { store } from "../../core/store";
import type { Rollout } from "../../types";
import { Badge, Button, Card, Empty, Facts, Note, Page, Problem, type Tone } from "../../ui";
import { draft, fleetError, type FleetNow, fleetNow, isDirty, loadFleet, askedRollouts } from "./fleet_state";
import { removalOf, type Proposal } from "./proposal";
import { Review } from "./review";
import { sentence } from "../requests/waterfall_rows";
import { RolloutCard } from "./rollout_card";
import { isMoving } from "./rollout_words";
import { placeOf, shortName } from "./source";
import { DEFAULT, type Spec, valueAt } from "./spec";

const PHASES: Readonly<Record<string, { word: string; tone: Tone; means: string }>> = {
  empty: { word: "no model", tone: "quiet", means: "Choose a model to serve." },
  waiting: { word: "waiting", tone: "warn", means: "No agent may run it yet." },
  loading: { word: "loading", tone: "info", means: "Its agents load it." },
  failed: { word: "failed", tone: "bad", means: "No agent serves it; the rollout has the reason." },
  updating: { word: "updating", tone: "info", means: "Fewer agents serve it than are wanted." },
  serving: { word: "serving", tone: "ok", means: "" },
  unloaded: { word: "unloaded", tone: "quiet", means: "It is loaded when a request asks for it." },
};

export function Overview() {
  const now = fleetNow.value;
  const [removing, setRemoving] = useState<{ proposal: Proposal; now: FleetNow } | null>(null);
  const remove = async (name: string): Promise<void> => {
    const fresh = await loadFleet();
    if (fresh) {
      setRemoving({ proposal: removalOf(name, fresh.revision), now: fresh });
    }
  };
  const rollouts = [...(store.known.value.has("rollouts") ? store.rollouts.value.values() : askedRollouts.value)];
  const open = draft.value;
  return (
    <Page
      title="Model"
      actions={
        <>
          <Button icon="list" onClick={() => navigate(hrefOf("model", ["history"]))}>
            History
          </Button>
          <Button icon="plus" onClick={() => navigate(hrefOf("model", ["new"]))}>
            Add a deployment
          </Button>
        </>
      }
    >
      {fleetError.value ? <Problem error={fleetError.value} retry={loadFleet} /> : null}
      {open && isDirty(open) ? (
        <Note>
          <div class="row">
            <span class="grow">
              Changes of <b>{open.name || "a new deployment"}</b> are not applied yet.
            </span>
            <Button
              size="small"
              onClick={() => navigate(open.isNew ? hrefOf("model", ["new"]) : hrefOf("model", ["edit", open.name]))}
            >
              Go on with them
            </Button>
          </div>
        </Note>
      ) : null}
      {now ? <InForce now={now} rollouts={rollouts} remove={remove} /> : fleetError.value ? null : <div class="skeleton" />}
      {removing ? (
        <Review
          proposal={removing.proposal}
          now={removing.now}
          close={() => {
            setRemoving(null);
            void loadFleet();
          }}
        />
      ) : null}
    </Page>
  );
}

function InForce({ now, rollouts, remove }: { now: FleetNow; rollouts: readonly Rollout[]; remove: (name: string) => void }) {
  const { revision } = now;
  const { deployments } = revision.state;
  const isEmpty = deployments.every((spec) => spec.model === "None");
  const moving = [...rollouts].sort((one, other) => Number(isMoving(other)) - Number(isMoving(one)));
  return (
    <>
      {isEmpty ? (
        <Card label="No model">
          <Empty
            icon="model"
            title="No model yet"
            advice="Choose a model of the hub, a file on the agents, or a URL. The agents load it, and requests can come."
          >
            <Button kind="primary" onClick={() => navigate(deployments.length ? hrefOf("model", ["edit", DEFAULT]) : hrefOf("model", ["new"], { name: DEFAULT }))}>
              Choose a model
            </Button>
          </Empty>
        </Card>
      ) : (
        <>
          <p class="muted in-force">
            Revision {revision.revision} is in force
            {revision.author ? <>, stored by {revision.author}</> : null} at {formatDate(new Date(revision.time))}
            {revision.note ? `: “${revision.note}”` : ""}
          </p>
          <div class="deployments">
            {deployments.map((spec) => (
              <DeploymentCard key={spec.name} spec={spec} now={now} remove={remove} />
            ))}
          </div>
        </>
      )}
      {moving.length > 0 ? (
        <section class="stack" aria-label="Rollouts">
          <h2 class="section-title">Rollouts</h2>
          {moving.map((rollout) => (
            <RolloutCard key={rollout.deployment} rollout={rollout} />
          ))}
        </section>
      ) : null}
    </>
  );
}

function DeploymentCard({ spec, now, remove }: { spec: Spec; now: FleetNow; remove: (name: string) => void }) {
  const known = now.deployments.find((each) => each.name === spec.name);
  const live = store.deployments.value.get(spec.name);
  const phase = PHASES[live?.phase ?? known?.phase ?? ""] ?? { word: live?.phase ?? "unknown", tone: "quiet" as const, means: "" };
  const number = (path: string): string => {
    const value = valueAt(spec, path);
    return typeof value === "number" ? value.toLocaleString("en") : "–";
  };
  const aliases = Array.isArray(spec["aliases"]) ? spec["aliases"].map(String) : [];
  const presets = (Array.isArray(spec["presets"]) ? spec["presets"] : []).map((each) => String(valueAt(each, "name")));
  const adapters = valueAt(spec, "extras.adapters");
  const serving = live?.serving ?? known?.replicas.serving ?? 0;
  const wanted = known?.replicas.wanted ?? 0;
  const isAuto = valueAt(spec, "extras.auto.context_size") === true;
  return (
    <Card
      class="deployment"
      label={`Deployment ${spec.name}`}
      title={
        <span class="row">
          {spec.name}
          <Badge tone={live?.state.severity ?? phase.tone}>{live?.state.word ?? phase.word}</Badge>
        </span>
      }
      actions={
        <>
          <Button size="small" kind="quiet" icon="trash" aria-label={`Remove ${spec.name}`} onClick={() => remove(spec.name)} />
          <Button size="small" icon="edit" aria-label={`Edit ${spec.name}`} onClick={() => navigate(hrefOf("model", ["edit", spec.name]))}>
            Edit
          </Button>
        </>
      }
    >
      <div class="model-name">
        <b>{shortName(spec.model)}</b>
        <span class="muted">{placeOf(spec.model)}</span>
      </div>
      {live && live.state.severity !== "ok" ? (
        <p class="muted">
          {sentence(live.state.sentence)} {sentence(live.state.follows)}
        </p>
      ) : phase.means ? (
        <p class="muted">{phase.means}</p>
      ) : null}
      <Facts
        rows={[
          ["Agents", `${serving} ${serving === 1 ? "answers" : "answer"}, ${wanted} wanted`],
          ["Replicas", String(spec["replicas"] ?? "all")],
          ["Context", `${number("parameters.context_size")} tokens${isAuto ? ", or as many as fit" : ""}`],
          ["Template", spec["template"] ? "override" : "the model's own"],
          ...(aliases.length > 0 ? [["Aliases", aliases.join(", ")] as const] : []),
          ...(Array.isArray(adapters) && adapters.length > 0
            ? [["Adapters", adapters.map((each) => String(valueAt(each, "name"))).join(", ")] as const]
            : []),
          ...(presets.length > 0
            ? [
                [
                  "Presets",
                  <span key="presets">
                    {presets.join(", ")} <a href={hrefOf("prompt", [], { sides: [...presets, spec.name].slice(0, 2).join(",") })}>Try two</a>
                  </span>,
                ] as const,
              ]
            : []),
          ...(Array.isArray(spec["where"]) && spec["where"].length > 0
            ? [["Where", spec["where"].map(String).join(", ")] as const]
            : []),
        ]}
      />
    </Card>
  );
}
