/** Recent warnings and errors of the balancer, newest last as in a terminal. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatDate, formatTime, plural } from "../../core/format";
import { store, useTopics } from "../../core/store";
import type { LogEntry, LogList } from "../../types";
import { Badge, Button, Checkbox, Copy, Empty, Input, Page, Problem, Segmented } from "../../ui";
import { Audit } from "./audit";
import { type Level, countOf, fieldsOf, isError, lineOf, matching, merged } from "./log_lines";

const entries = signal<readonly LogEntry[]>([]);
const level = signal<Level>("all");
const search = signal("");
const follows = signal(true);
/** The start of the balancer that the entries are of; their numbers begin anew with each. */
let started: string | null = null;

export default function LogsPage() {
  const [view, setView] = useState<"warnings" | "audit">("warnings");
  return (
    <Page
      title="Logs"
      wide
      actions={
        <Segmented
          label="View"
          value={view}
          options={[
            { value: "warnings", label: "warnings" },
            { value: "audit", label: "audit" },
          ]}
          onValue={setView}
        />
      }
    >
      {view === "audit" ? <Audit /> : <Warnings />}
    </Page>
  );
}

function Warnings() {
  useTopics("balancer", "logs");
  const [problem, setProblem] = useState<unknown>(null);
  const [isLoaded, setLoaded] = useState(false);
  const isAsking = useRef(false);
  const load = async (): Promise<void> => {
    if (isAsking.current) {
      return;
    }
    isAsking.current = true;
    try {
      for (;;) {
        const current = store.balancer.peek()?.started ?? started;
        const known: readonly LogEntry[] = current === started ? entries.peek() : [];
        const after = known.at(-1)?.seq;
        const { entries: newer } = await api.get<LogList>(`api/v2/logs${after === undefined ? "" : `?after=${after}`}`);
        started = current;
        entries.value = merged(known, newer);
        const last = entries.peek().at(-1)?.seq ?? -1;
        if (newer.length === 0 || (store.logs.peek()?.seq ?? -1) <= last) {
          break;
        }
      }
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      setProblem(error);
    } finally {
      isAsking.current = false;
      setLoaded(true);
    }
  };
  const seq = store.logs.value?.seq;
  const start = store.balancer.value?.started;
  useEffect(() => void load(), [seq, start]);

  const shown = useMemo(
    () => matching(entries.value, level.value, search.value),
    [entries.value, level.value, search.value],
  );
  const errors = entries.value.filter(isError).length;
  return (
    <div class="stack">
      <div class="row">
          <Segmented
            label="Level"
            value={level.value}
            options={[
              { value: "all", label: `all ${entries.value.length}` },
              { value: "warning", label: `warnings ${entries.value.length - errors}` },
              { value: "error", label: `errors ${errors}` },
            ]}
            onValue={(value) => {
              level.value = value;
            }}
          />
          <Input
            class="logs-input"
            type="search"
            aria-label="Search the logs"
            placeholder="Search"
            value={search.value}
            onValue={(value) => {
              search.value = value;
            }}
          />
          <Checkbox
            label="follow"
            checked={follows.value}
            onValue={(value: boolean) => {
              follows.value = value;
            }}
          />
          <Button icon="retry" aria-label="Load the logs again" onClick={() => void load()} />
      </div>
      {problem === null ? null : <Problem error={problem} title="The logs cannot be loaded" retry={() => void load()} />}
      {entries.value.length === 0 ? (
        isLoaded && problem === null ? (
          <Empty
            icon="check"
            title="No warning, no error"
            advice="What goes wrong at the balancer, agents that are lost or fail, and changes that were taken back appear here as it happens."
          />
        ) : null
      ) : shown.length === 0 ? (
        <Empty icon="search" title="No entry matches" advice={`${plural(entries.value.length, "entry", "entries")} of another kind.`} />
      ) : (
        <Lines entries={shown} />
      )}
    </div>
  );
}

// ------------------------------------------------------------------------------------- inside

function Lines({ entries: shown }: { entries: readonly LogEntry[] }) {
  const list = useRef<HTMLOListElement>(null);
  const [open, setOpen] = useState<number | null>(null);
  const last = shown.at(-1)?.seq;
  useEffect(() => {
    const element = list.current;
    if (element !== null && follows.value) {
      element.scrollTop = element.scrollHeight;
    }
  }, [last, follows.value]);
  return (
    <ol
      class="logs"
      ref={list}
      tabIndex={0}
      aria-label="Log entries, the newest last"
      onScroll={(event) => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        const isAtEnd = scrollHeight - scrollTop - clientHeight < 24;
        if (!isAtEnd && follows.value && event.currentTarget.matches(":hover, :focus")) {
          follows.value = false; // who scrolls up wants to read
        }
      }}
    >
      {shown.map((entry) => (
        <Line
          key={entry.seq}
          entry={entry}
          isOpen={entry.seq === open}
          toggle={() => setOpen(entry.seq === open ? null : entry.seq)}
        />
      ))}
    </ol>
  );
}

function Line({ entry, isOpen, toggle }: { entry: LogEntry; isOpen: boolean; toggle: () => void }) {
  const time = new Date(entry.time);
  return (
    <li class={isError(entry) ? "log error" : "log"}>
      <button type="button" class="log-line" aria-expanded={isOpen} onClick={toggle}>
        <time dateTime={entry.time} title={formatDate(time)}>
          {formatTime(time, true)}
        </time>
        <Badge tone={isError(entry) ? "bad" : "warn"}>{entry.level}</Badge>
        <span class="log-event">{entry.event}</span>
        {entry.count > 1 ? <b class="log-count">{countOf(entry)}</b> : null}
        <span class="log-fields">
          {fieldsOf(entry).map(([name, value]) => (
            <span key={name}>
              <i>{name}</i>={value}
            </span>
          ))}
        </span>
      </button>
      {isOpen ? (
        <div class="log-detail">
          <dl class="facts">
            {[
              ["time", formatDate(time)] as const,
              ...(entry.count > 1 ? [["first", formatDate(new Date(entry.first))] as const, ["count", countOf(entry)] as const] : []),
              ["logger", entry.logger] as const, ...fieldsOf(entry)].map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>
                  <pre>{value}</pre>
                </dd>
              </div>
            ))}
          </dl>
          <Copy text={lineOf(entry)} label="Copy the entry" />
        </div>
      ) : null}
    </li>
  );
}
