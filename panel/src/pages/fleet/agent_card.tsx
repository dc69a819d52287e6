import { clientOf, formatAge, formatCount, formatPercent, plural } from "../../core/format";
import { hrefOf } from "../../core/router";
import { store } from "../../core/store";
import { now, second } from "../../core/time";
import type { Agent, RequestView } from "../../types";
import { Badge, Button, Icon, Meter } from "../../ui";
import { type AgentState, downloadText, issueText, modelName, revisionOf, stateOf } from "./agent_facts";
import type { AgentActions } from "./agent_list";
import { type InLane, type Lanes, laneCount } from "./lanes";
import { CacheMeter, MemoryMeters } from "./memory";
import { ratesOf, sampled } from "./rate_history";
import { Sparkline } from "./sparkline";

const PHASES = { q: "queued", p: "prefill", d: "decode", s: "stopping" } as const;
/** Up to so many slots are lines with the request's name; more are cells. */
const MAX_LINES = 8;

/** One agent; `isFixed`: all cards have the same height, because only those in sight are drawn. */
export function AgentCard({
  agent,
  lanes,
  actions,
  isFixed,
}: {
  agent: Agent;
  lanes: Lanes;
  actions: AgentActions;
  isFixed: boolean;
}) {
  second.value;
  const state = stateOf(agent, now());
  const classes = ["card agent", state.tone === "bad" ? "bad" : state.tone === "warn" ? "warn" : "", isFixed && "fixed"];
  return (
    <article id={`agent-${agent.key}`} class={classes.filter(Boolean).join(" ")} aria-label={`Agent ${agent.label}`}>
      <CardHead agent={agent} state={state} actions={actions} />
      <ModelLine agent={agent} />
      {state.detail ? <p class="agent-detail">{state.detail}</p> : null}
      {agent.download_filename !== null ? <DownloadBar agent={agent} /> : null}
      <Slots agent={agent} lanes={lanes} asCells={isFixed || laneCount(agent) > MAX_LINES} />
      <Rates agent={agent} />
      <div class="agent-memory">
        <CacheMeter engine={agent.engine} />
        <MemoryMeters memory={agent.memory} limit={isFixed ? 1 : 4} />
      </div>
      {agent.issues.length ? <IssueLine agent={agent} open={() => actions.showIssues(agent)} /> : null}
      <footer class="agent-foot">
        <span title="The protocol of its link">{agent.protocol === "paddler-trio.1" ? agent.protocol : "Paddler 4.1"}</span>
        <span title="How long its link is up">linked {formatAge(now() - agent.joined_ms)}</span>
        <a href={hrefOf("machines", [agent.host])} aria-label={`Machine of ${agent.label}`}>
          machine
        </a>
        <span class={agent.engine_restarts > 0 ? "restarts" : undefined} title="How often its engine was started anew after a crash">
          {plural(agent.engine_restarts, "engine restart")}
        </span>
      </footer>
    </article>
  );
}

function CardHead({ agent, state, actions }: { agent: Agent; state: AgentState; actions: AgentActions }) {
  return (
    <header class="agent-head">
      <h3 class="truncate" title={agent.name === null ? `${agent.id}, an agent without a name` : agent.id}>
        {agent.label}
      </h3>
      <Badge tone={state.tone}>{state.word}</Badge>
      <span class="grow" />
      <Button kind="quiet" size="small" icon="info" aria-label={`Model metadata of ${agent.label}`} onClick={() => actions.showMetadata(agent)} />
      <Button
        size="small"
        busy={actions.isBusy(agent)}
        aria-label={`${agent.is_drained ? "Undrain" : "Drain"} ${agent.label}`}
        title={agent.is_drained ? "Give it requests again" : "Give it no more requests; those that run end"}
        onClick={() => actions.drain(agent)}
      >
        {agent.is_drained ? "Undrain" : "Drain"}
      </Button>
    </header>
  );
}

function ModelLine({ agent }: { agent: Agent }) {
  const name = modelName(agent.model_path);
  const revision = revisionOf(agent);
  return (
    <p class="agent-model">
      <span class="truncate" title={agent.model_path ?? undefined}>
        {name ?? <span class="muted">no model</span>}
      </span>
      {revision ? (
        <span class={revision.isOld ? "revision old" : "revision"} title={revision.isOld ? "An older state; the desired one is on its way" : "The desired state"}>
          {revision.word}
        </span>
      ) : null}
      {agent.deployment !== "default" ? <Badge>{agent.deployment}</Badge> : null}
      {agent.uses_chat_template_override ? <Badge title="The chat template is not the model's own">own template</Badge> : null}
    </p>
  );
}

function DownloadBar({ agent }: { agent: Agent }) {
  const isOpen = agent.download_indeterminate || agent.download_total === 0;
  const share = isOpen ? null : agent.download_current / agent.download_total;
  return (
    <div class="download">
      <p class="truncate" title={agent.download_filename ?? undefined}>
        <Icon name="download" />
        <span class="truncate">
          {agent.download?.phase ?? "downloading"} {agent.download_filename}
          {agent.download ? ` from ${agent.download.source}` : ""}
        </span>
        <b>{share === null ? "" : formatPercent(share)}</b>
      </p>
      <Meter
        label="Download"
        max={1}
        indeterminate={isOpen}
        segments={[{ label: "fetched", value: share ?? 0.4, text: share === null ? "unknown" : formatPercent(share), color: "--accent" }]}
      />
      <p class="muted">{downloadText(agent)}</p>
    </div>
  );
}

function Slots({ agent, lanes, asCells }: { agent: Agent; lanes: Lanes; asCells: boolean }) {
  const count = laneCount(agent);
  const busy = Math.max(agent.lanes.length, agent.slots_processing);
  const requests = store.requests.value;
  return (
    <div class="slots">
      <p class="slots-head">
        <span>Slots</span>
        <span>
          <b>{busy}</b> of {agent.slots_total}
          {agent.slots_total < agent.desired_slots_total ? ` (${agent.desired_slots_total} when it serves)` : ""}
        </span>
      </p>
      {asCells ? (
        <div class={count > 256 ? "cells tiny" : count > 60 ? "cells small" : "cells"} role="img" aria-label={`${busy} of ${agent.slots_total} slots busy`}>
          {Array.from({ length: count }, (_, place) => (
            <span key={place} class={lanes[place]?.phase ?? (agent.slots_total > 0 ? "idle" : "off")} />
          ))}
        </div>
      ) : (
        <ol class="lanes">
          {Array.from({ length: count }, (_, place) => {
            const lane = lanes[place] ?? null;
            return (
              <li key={place} class={lane?.phase ?? (agent.slots_total > 0 ? "idle" : "off")}>
                <span class="number">{place}</span>
                <LaneLine lane={lane} request={lane ? requests.get(String(lane.request)) : undefined} />
              </li>
            );
          })}
        </ol>
      )}
    </div>
  );
}

function LaneLine({ lane, request }: { lane: InLane | null; request: RequestView | undefined }) {
  if (lane === null) {
    return (
      <span class="bar">
        <span class="unseen">free</span>
      </span>
    );
  }
  const age = formatAge(now() - (request?.arrived_ms ?? lane.since_ms));
  const placement = request?.placements.at(-1);
  const tokens = request && lane.phase === "d" ? `${formatCount(request.tokens)} tok` : placement?.prompt_tokens ? `${formatCount(placement.prompt_tokens)} in` : "";
  return (
    <a class="bar" href={hrefOf("requests", [lane.request])} title={request?.id}>
      <span class="who truncate">{request ? clientOf(request) : `request ${lane.request}`}</span>
      <span class="tokens">{tokens}</span>
      <span class="phase">{PHASES[lane.phase]}</span>
      <span class="age">{age}</span>
    </a>
  );
}

function Rates({ agent }: { agent: Agent }) {
  sampled.value;
  const { rates } = agent;
  return (
    <dl class="rates">
      <div>
        <dt>Generated</dt>
        <dd>
          <b>{rates ? formatCount(rates.generated_tokens_per_s) : "–"}</b> tok/s
        </dd>
      </div>
      <div>
        <dt>Prompts</dt>
        <dd>
          <b>{rates ? formatCount(rates.prompt_tokens_per_s) : "–"}</b> tok/s
        </dd>
      </div>
      <div>
        <dt>Cache hits</dt>
        <dd>
          <b>{formatPercent(rates?.cached_ratio)}</b>
        </dd>
      </div>
      <Sparkline values={ratesOf(agent.key)} />
    </dl>
  );
}

function IssueLine({ agent, open }: { agent: Agent; open: () => void }) {
  const [first] = agent.issues;
  return (
    <button type="button" class="issue-line" onClick={open}>
      <Icon name="warning" />
      <span class="truncate">{first ? issueText(first).title : ""}</span>
      <b>{agent.issues.length > 1 ? `and ${agent.issues.length - 1} more` : "Details"}</b>
    </button>
  );
}
