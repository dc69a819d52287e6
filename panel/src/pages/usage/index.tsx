/** What was used by day and month, for each key, user or model: a table, and as CSV. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, addressOf, api } from "../../core/api";
import { formatCount, formatDate, formatInteger, formatPercent } from "../../core/format";
import { hrefOf, navigate, route } from "../../core/router";
import type { UsageRow, UsageTable } from "../../types";
import { Card, type Column, Empty, Figure, Figures, Icon, Note, Page, Problem, Segmented, Select, Table } from "../../ui";
import { type Wanted, monthsBefore, pathOf, totalsOf, wantedIn } from "./usage";

export default function UsagePage() {
  const { query } = route.value;
  const wanted = useMemo(() => wantedIn(query), [query]);
  const show = (more: Partial<Wanted>): void => navigate(hrefOf("usage", [], { ...wanted, ...more }), { replace: true });
  const { found, problem, load } = useUsage(pathOf(wanted));
  return (
    <Page
      title="Usage"
      actions={
        <>
          <Segmented
            label="Of"
            value={wanted.by}
            options={[
              { value: "key", label: "Keys" },
              { value: "user", label: "Users" },
              { value: "model", label: "Models" },
            ]}
            onValue={(by) => show({ by })}
          />
          <Segmented
            label="For each"
            value={wanted.per}
            options={[
              { value: "month", label: "Month" },
              { value: "day", label: "Day" },
            ]}
            onValue={(per) => show({ per })}
          />
          <Select
            aria-label="Which month"
            value={wanted.month}
            options={[
              { value: "", label: wanted.per === "day" ? "this month" : "all that is kept" },
              ...monthsBefore(new Date()),
            ]}
            onValue={(month) => show({ month })}
          />
          <a class="button plain" href={addressOf(pathOf(wanted, "csv"))} download title="This table as CSV">
            <Icon name="download" />
            <span>CSV</span>
          </a>
        </>
      }
    >
      {problem === null ? null : <Problem error={problem} title="Usage cannot be loaded" retry={load} />}
      {found === null ? null : <Found table={found} />}
    </Page>
  );
}

// ------------------------------------------------------------------------------------- inside

function useUsage(path: string) {
  const [state, setState] = useState<{ path: string; found: UsageTable } | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [times, setTimes] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    api
      .get<UsageTable>(path)
      .then((found) => {
        if (isCurrent) {
          setState({ path, found });
          setProblem(null);
        }
      })
      .catch((error: unknown) => {
        if (!(error instanceof ApiError)) {
          throw error;
        }
        if (isCurrent) {
          setProblem(error);
        }
      });
    return () => {
      isCurrent = false;
    };
  }, [path, times]);
  const found = state !== null && state.path === path ? state.found : null;
  return { found, problem, load: () => setTimes((before) => before + 1) };
}

function Found({ table }: { table: UsageTable }) {
  const totals = totalsOf(table.rows);
  return (
    <div class="stack">
      <p class="muted">
        From {table.begin} to {table.end}; days and months are of UTC. Requests count when they end.
      </p>
      {table.problem === "" ? null : <Note tone="warn">{table.problem}</Note>}
      {table.by === "user" && !table.by_user ? (
        <Note tone="info">
          Users are not told apart, and no name of one is kept. Start the balancer with <code>--usage-by-user</code> to count usage for
          each user that clients name.
        </Note>
      ) : null}
      {table.rows.length === 0 ? (
        <Empty icon="metrics" title="Nothing was used" advice="No request ended in this time." />
      ) : (
        <>
          <Card label="Together">
            <Figures>
              <Figure label="Requests" value={formatCount(totals.requests)} />
              <Figure label="Tokens in" value={formatCount(totals.prompt_tokens)} />
              <Figure
                label="Of them cached"
                value={totals.prompt_tokens === 0 ? "n/a" : formatPercent(totals.cached_tokens / totals.prompt_tokens)}
              />
              <Figure label="Tokens out" value={formatCount(totals.generated_tokens)} />
              <Figure label="Refused at a limit" value={formatCount(totals.refused)} tone={totals.refused > 0 ? "warn" : undefined} />
            </Figures>
          </Card>
          <Table
            label="Usage"
            rows={table.rows}
            rowKey={(row) => [row.period, row.key, row.user, row.model].join("\n")}
            rowHeight={36}
            columns={columnsOf(table.by)}
          />
        </>
      )}
    </div>
  );
}

function columnsOf(by: UsageTable["by"]): Column<UsageRow>[] {
  const name = (id: "key" | "user" | "model", none: string): Column<UsageRow> => ({
    id,
    title: id,
    value: (row) => row[id] ?? "",
    render: (row) => (row[id] ? <span class="mono">{row[id]}</span> : <span class="muted">{none}</span>),
  });
  const number = (id: "requests" | "prompt_tokens" | "cached_tokens" | "generated_tokens" | "failed" | "refused", title: string, hide?: "narrow" | "medium"): Column<UsageRow> => ({
    id,
    title,
    align: "right",
    ...(hide === undefined ? {} : { hide }),
    value: (row) => row[id],
    render: (row) => <span class="nowrap">{formatInteger(row[id])}</span>,
  });
  return [
    { id: "period", title: "UTC", value: (row) => row.period, render: (row) => <span class="nowrap">{row.period}</span> },
    ...(by === "model" ? [name("model", "none")] : []),
    ...(by === "user" ? [name("user", "nobody named")] : []),
    ...(by === "model" ? [] : [name("key", "no key")]),
    number("requests", "requests"),
    number("prompt_tokens", "tokens in"),
    number("cached_tokens", "cached", "medium"),
    number("generated_tokens", "tokens out"),
    number("failed", "failed", "medium"),
    number("refused", "refused", "narrow"),
    {
      id: "last",
      title: "last use",
      hide: "medium",
      value: (row) => row.last_s,
      render: (row) => <span class="nowrap">{formatDate(new Date(row.last_s * 1000))}</span>,
    },
  ];
}
