import { useMemo, useState } from "preact/hooks";
import { hrefOf, navigate, route } from "../../core/router";
import { store } from "../../core/store";
import { now, second } from "../../core/time";
import { formatInteger, plural } from "../../core/format";
import type { RequestView } from "../../types";
import { Button, type Column, Empty, Note, Page, Problem, Segmented, type Sort, Table } from "../../ui";
import { CancelRequest } from "./cancel";
import { columnsFor, storeColumns, storedColumns } from "./columns";
import { type Filter, isFiltered, parseFilter, queryOf } from "./filter";
import { ColumnChooser, ExportLinks, Filters } from "./filters";
import { MOST, type Shown, useFinished, useInFlight } from "./use_requests";

/** The tables of requests in flight and of those that ended. */
export function RequestList() {
  const { query } = route.value;
  const filter = useMemo(() => parseFilter(query), [query]);
  const change = (next: Filter): void => navigate(hrefOf("requests", [], { ...queryOf(next) }), { replace: true });
  const [follows, setFollows] = useState(true);
  const [chosen, setChosen] = useState(storedColumns);
  const [cancelled, setCancelled] = useState<RequestView | null>(null);
  const isLive = filter.state === "in_flight";
  const inFlight = useInFlight(filter, isLive);
  const finished = useFinished(filter, !isLive, follows);
  const shown = isLive ? inFlight : finished;
  const balancer = store.balancer.value;
  const count = balancer === null ? null : balancer.slots.busy + balancer.buffer.waiting;
  return (
    <Page
      title="Requests"
      wide
      actions={
        <>
          {isLive ? null : (
            <Button class="request-follow" icon={follows ? "pause" : "play"} aria-pressed={!follows} onClick={() => setFollows(!follows)}>
              {follows ? "Pause" : "Follow"}
            </Button>
          )}
          <ColumnChooser
            chosen={chosen}
            choose={(ids) => {
              setChosen(ids);
              storeColumns(ids);
            }}
          />
          <ExportLinks filter={filter} />
        </>
      }
    >
      <div class="request-bar">
        <Segmented
          label="Which requests"
          options={[
            { value: "in_flight", label: count === null ? "In flight" : `In flight ${formatInteger(count)}` },
            { value: "finished", label: "Recent" },
          ]}
          value={filter.state}
          onValue={(state) => change({ ...filter, state })}
        />
        <Filters filter={filter} views={shown.views} change={change} />
      </div>
      {shown.error !== null ? <Problem title="The requests cannot be listed." error={shown.error} retry={shown.retry} /> : null}
      {shown.partial ? (
        <Note>
          {plural(count ?? 0, "request")} are in flight. The table shows the newest {formatInteger(MOST)}, anew every two seconds.
        </Note>
      ) : null}
      <RequestTable key={filter.state} shown={shown} filter={filter} chosen={chosen} cancel={setCancelled} />
      {isLive ? null : (
        <div class="request-more">
          <span class="muted">{plural(shown.views.length, "request")}</span>
          <Button disabled={shown.more === null} busy={shown.loading && shown.views.length > 0} onClick={() => shown.more?.()}>
            {shown.more === null && !shown.loading ? "No older ones" : "Older ones"}
          </Button>
        </div>
      )}
      {cancelled !== null ? <CancelRequest view={cancelled} close={() => setCancelled(null)} /> : null}
    </Page>
  );
}

function RequestTable({
  shown,
  filter,
  chosen,
  cancel,
}: {
  shown: Shown;
  filter: Filter;
  chosen: readonly string[];
  cancel: (view: RequestView) => void;
}) {
  const isLive = filter.state === "in_flight";
  const [sort, setSort] = useState<Sort>({ column: "request", descending: !isLive });
  if (isLive) {
    second.value; // durations grow
  }
  const columns: Column<RequestView>[] = columnsFor(filter.state, chosen, now());
  if (isLive) {
    columns.push({
      id: "cancel",
      title: <span class="unseen">Cancel</span>,
      align: "right",
      width: "52px",
      render: (view) => (
        <Button
          kind="quiet"
          size="small"
          icon="stop"
          aria-label={`Cancel request ${view.id || view.key}`}
          disabled={view.phase === "stopping"}
          onClick={() => cancel(view)}
        />
      ),
    });
  }
  return (
    <div class="request-table">
      <Table
        label={isLive ? "Requests in flight" : "Recent requests"}
        columns={columns}
        rows={shown.views}
        rowKey={(view) => view.key}
        sort={sort}
        onSort={setSort}
        onRow={(view) => navigate(hrefOf("requests", [view.key]))}
        rowLabel={(view) => `Open request ${view.id || view.key}`}
        empty={<NoRequests filter={filter} loading={shown.loading} />}
      />
    </div>
  );
}

function NoRequests({ filter, loading }: { filter: Filter; loading: boolean }) {
  if (loading) {
    return <div class="request-loading" role="status" aria-busy="true" aria-label="The requests are being fetched" />;
  }
  if (isFiltered(filter)) {
    return <Empty icon="filter" title="No request fits the filter" advice="Change the filter, or clear it." />;
  }
  return filter.state === "in_flight" ? (
    <Empty icon="requests" title="No request is in flight" advice="Requests appear here as they arrive, and go to Recent once they have ended." />
  ) : (
    <Empty icon="requests" title="No request has ended yet" advice="The balancer remembers the last 10,000 that ended, until it is started anew." />
  );
}
