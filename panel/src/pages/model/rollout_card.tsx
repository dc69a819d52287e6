/** One rollout, live: how far each agent is, why it waits, and what may be ordered. */

import { useState } from "preact/hooks";
import { api } from "../../core/api";
import { formatAge, formatPercent } from "../../core/format";
import { now as balancerNow, second, wallTime } from "../../core/time";
import type { Rollout, RolloutAgent } from "../../types";
import { Badge, Button, Card, Confirm, Meter, Note, Table, textOf, toast } from "../../ui";
import { askedRollouts, loadFleet } from "./fleet_state";
import { agentPhaseWords, changeWords, headline, isMoving, type Order, ordersFor, phaseWords, progressSegments, questionOf, sortedAgents } from "./rollout_words";

const BUTTONS: Record<Order, { text: string; icon: "pause" | "play" | "stop" | "undo"; isDanger: boolean; title: string }> = {
  pause: { text: "Pause", icon: "pause", isDanger: false, title: "Pause the rollout" },
  resume: { text: "Resume", icon: "play", isDanger: false, title: "Resume the rollout" },
  abort: { text: "Abort", icon: "stop", isDanger: true, title: "Abort the rollout?" },
  undo: { text: "Undo", icon: "undo", isDanger: false, title: "Undo this change?" },
};

export function RolloutCard({ rollout }: { rollout: Rollout }) {
  const [asking, setAsking] = useState<Order | null>(null);
  const [busy, setBusy] = useState<Order | null>(null);
  const { word, tone } = phaseWords(rollout.phase);
  const order = async (which: Order): Promise<void> => {
    setAsking(null);
    setBusy(which);
    try {
      const path = `api/v2/rollout/${encodeURIComponent(rollout.deployment)}/${which}`;
      askedRollouts.value = (await api.send<{ rollouts: Rollout[] }>("POST", path)).rollouts;
      await loadFleet();
    } catch (error) {
      toast("bad", textOf(error));
    }
    setBusy(null);
  };
  const isBad = tone === "bad";
  return (
    <Card
      class="rollout"
      label={`Rollout of ${rollout.deployment}`}
      {...(isBad ? { tone: "bad" as const } : {})}
      title={
        <span class="row">
          {rollout.deployment}
          <Badge tone={tone}>{word}</Badge>
          <span class="muted revisions">{changeWords(rollout)}</span>
        </span>
      }
      actions={ordersFor(rollout).map((which) => (
        <Button
          key={which}
          size="small"
          icon={BUTTONS[which].icon}
          kind={BUTTONS[which].isDanger ? "danger" : "plain"}
          busy={busy === which}
          disabled={busy !== null}
          onClick={() => (questionOf(which, rollout) ? setAsking(which) : void order(which))}
        >
          {BUTTONS[which].text}
        </Button>
      ))}
    >
      <div class="stack">
        <div class="row rollout-line">
          <span>{headline(rollout)}</span>
          <span class="grow" />
          {rollout.started && isMoving(rollout) ? <Since started={rollout.started} /> : null}
        </div>
        {rollout.agents.length > 0 ? (
          <Meter label={`Agents of ${rollout.deployment}`} segments={progressSegments(rollout)} max={rollout.agents.length} legend />
        ) : null}
        {rollout.reason ? (
          isBad ? (
            <div class="problem" role="alert">
              <div>{rollout.reason}</div>
            </div>
          ) : (
            <Note tone="warn">{rollout.reason}</Note>
          )
        ) : null}
        {rollout.waits_for && isMoving(rollout) ? (
          <p class="muted">
            Waits for: {rollout.waits_for}
            {rollout.ready_in_s ? `, about ${formatAge(rollout.ready_in_s * 1000)} more` : ""}
          </p>
        ) : null}
        <Agents rollout={rollout} />
      </div>
      {asking ? (
        <Confirm
          title={BUTTONS[asking].title}
          action={BUTTONS[asking].text}
          kind={BUTTONS[asking].isDanger ? "danger" : "primary"}
          confirm={() => void order(asking)}
          close={() => setAsking(null)}
        >
          <p>{questionOf(asking, rollout)}</p>
        </Confirm>
      ) : null}
    </Card>
  );
}

function Agents({ rollout }: { rollout: Rollout }) {
  if (rollout.agents.length === 0) {
    return null;
  }
  const hasDetail = rollout.agents.some((agent) => agent.detail);
  return (
    <details class="rollout-agents" open={isMoving(rollout) || rollout.agents.some((agent) => agent.phase === "failed")}>
      <summary>Agents</summary>
      <Table<RolloutAgent>
        label={`Agents of the rollout of ${rollout.deployment}`}
        rows={sortedAgents(rollout.agents)}
        rowKey={(agent) => agent.host}
        maxHeight="360px"
        columns={[
          { id: "agent", title: "Agent", value: (agent) => agent.agent, render: (agent) => <b class="nowrap">{agent.agent}</b> },
          {
            id: "phase",
            title: "Phase",
            width: "176px",
            render: (agent) => {
              const words = agentPhaseWords(agent.phase);
              return (
                <Badge dot tone={words.tone}>
                  {words.word}
                </Badge>
              );
            },
          },
          {
            id: "progress",
            title: "Progress",
            align: "right",
            width: "96px",
            render: (agent) => (agent.progress === null || agent.phase === "serving" ? "" : formatPercent(agent.progress)),
          },
          ...(hasDetail
            ? [{ id: "detail", title: "Detail", render: (agent: RolloutAgent) => <span class="detail">{agent.detail ?? ""}</span> }]
            : []),
        ]}
      />
    </details>
  );
}

function Since({ started }: { started: string }) {
  second.value; // drawn anew each second
  const age_ms = wallTime(balancerNow()).getTime() - Date.parse(started);
  return age_ms > 0 && age_ms < 1e11 ? <span class="muted since">for {formatAge(age_ms)}</span> : null;
}
