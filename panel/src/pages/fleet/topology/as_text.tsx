import { computed } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { clientOf, formatAge } from "../../../core/format";
import { hrefOf } from "../../../core/router";
import { store } from "../../../core/store";
import { now } from "../../../core/time";
import { Table } from "../../../ui";
import type { LaneBook } from "../lanes";
import { type AgentShown, type ClientBook, pictureOf } from "./picture";

/** The picture as tables, for those who do not see it. */
export function AsText({ books }: { books: { lanes: LaneBook; clients: ClientBook } }) {
  const picture = useMemo(
    () =>
      computed(() =>
        pictureOf(
          store.agents.value,
          store.deployments.value,
          store.requests.value,
          now(),
          books.lanes,
          books.clients,
        ),
      ),
    [],
  ).value;
  return (
    <div class="as-text stack">
      <p>
        Clients with requests in flight:{" "}
        {picture.clients.length
          ? picture.clients.map((client) => `${client.name} ${client.count}`).join(", ")
          : "none"}
        . Waiting:{" "}
        {picture.queues
          .map(
            (queue) =>
              `${queue.deployment} ${queue.waiting}${queue.oldest_wait_ms === null ? "" : `, the longest for ${formatAge(queue.oldest_wait_ms)}`}`,
          )
          .join("; ") || "none"}
        .
      </p>
      <Table
        label="Agents and the requests in their slots"
        rows={picture.agents}
        rowKey={(each) => each.agent.key}
        maxHeight="360px"
        columns={[
          { id: "agent", title: "Agent", render: (each) => each.agent.label, width: "20%" },
          { id: "state", title: "State", render: (each) => each.state.word, width: "20%" },
          { id: "slots", title: "Slots", render: (each) => <InSlots shown={each} /> },
        ]}
      />
    </div>
  );
}

function InSlots({ shown }: { shown: AgentShown }) {
  const busy = shown.lanes.flatMap((lane, place) => (lane ? [{ lane, place }] : []));
  if (busy.length === 0) {
    return <span class="muted">{shown.agent.slots_total} free</span>;
  }
  return (
    <>
      {busy.map(({ lane, place }, index) => {
        const request = store.requests.peek().get(String(lane.request));
        const phase = { q: "queued", p: "prefill", d: "decode", s: "stopping" }[lane.phase];
        return (
          <span key={lane.request}>
            {index ? ", " : ""}
            {place}: <a href={hrefOf("requests", [lane.request])}>{request ? clientOf(request) : lane.request}</a> ({phase})
          </span>
        );
      })}
      {shown.agent.slots_total > busy.length ? `, ${shown.agent.slots_total - busy.length} free` : ""}
    </>
  );
}
