/** Who changed what: the newest entries of the balancer's audit log. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatDate, formatTime } from "../../core/format";
import { store, useTopics } from "../../core/store";
import type { AuditEntry, AuditList } from "../../types";
import { Badge, Button, Empty, Input, Note, Problem, Select, Table } from "../../ui";
import { actsMatching, detailsOf } from "./acts";

const LOOK_MS = 5000;

export function Audit() {
  useTopics("balancer");
  const [list, setList] = useState<AuditList | null>(null);
  const [problem, setProblem] = useState<ApiError | null>(null);
  const [action, setAction] = useState("");
  const [search, setSearch] = useState("");
  const load = async (): Promise<void> => {
    try {
      setList(await api.get<AuditList>("api/v2/audit"));
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      setProblem(error);
    }
  };
  const revision = store.balancer.value?.revision;
  useEffect(() => {
    void load();
    const timer = setInterval(() => document.hidden || void load(), LOOK_MS);
    return () => clearInterval(timer);
  }, [revision]);
  const entries = list?.entries ?? [];
  const shown = useMemo(() => actsMatching(entries, action, search), [entries, action, search]);
  const actions = [...new Set(entries.map((each) => each.action))].sort();
  return (
    <div class="stack">
      <div class="row">
        <Select
          aria-label="Action"
          value={action}
          options={[{ value: "", label: "every action" }, ...actions.map((each) => ({ value: each, label: each }))]}
          onValue={setAction}
        />
        <Input
          class="logs-input"
          type="search"
          aria-label="Search the audit log"
          placeholder="Who, what, where"
          value={search}
          onValue={setSearch}
        />
        <Button icon="retry" aria-label="Load the audit log again" onClick={() => void load()} />
      </div>
      {problem === null ? null : <Problem error={problem} title="The audit log cannot be loaded" retry={() => void load()} />}
      {list?.file?.problem ? <Note tone="warn">The file {list.file.path} is not written: {list.file.problem}.</Note> : null}
      {list === null ? null : entries.length === 0 ? (
        <Empty icon="check" title="Nothing was changed" advice="What operators do since the balancer was started appears here." />
      ) : shown.length === 0 ? (
        <Empty icon="search" title="No entry matches" advice="Another action or another text may." />
      ) : (
        <Acts entries={shown} />
      )}
    </div>
  );
}

// ------------------------------------------------------------------------------------- inside

function Acts({ entries }: { entries: readonly AuditEntry[] }) {
  return (
    <Table
      label="Audit log, the newest first"
      rows={entries}
      rowKey={(each) => String(each.seq)}
      columns={[
        {
          id: "time",
          title: "time",
          width: "96px",
          render: (each) => {
            const time = new Date(each.time);
            return <time dateTime={each.time} title={formatDate(time)}>{formatTime(time)}</time>;
          },
        },
        {
          id: "who",
          title: "who",
          render: (each) => (
            <span class="mono">
              {each.who} <span class="muted">from {each.source}</span>
            </span>
          ),
        },
        {
          id: "action",
          title: "action",
          render: (each) => (
            <span class="row">
              {each.action}
              {each.outcome === "done" ? null : <Badge tone="warn">{each.outcome}</Badge>}
            </span>
          ),
        },
        { id: "target", title: "target", render: (each) => <span class="mono">{each.target}</span> },
        { id: "details", title: "details", hide: "narrow", render: (each) => <span class="muted">{detailsOf(each)}</span> },
      ]}
    />
  );
}
