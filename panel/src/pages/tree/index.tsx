/** The running nursery trees, of the balancer and of agents of ours: every task and what it waits for. */

import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatTime, plural } from "../../core/format";
import { store, useTopics } from "../../core/store";
import { Badge, Button, Checkbox, Empty, Icon, Input, Note, Page, Problem, Select } from "../../ui";
import { MAX_SHOWN_ROWS, type TreeNode, type TreeRow, difference, moveFor, pathsOf, rowsOf, totals } from "./tree_rows";

const BALANCER = "";
/** How often the tree is asked for; a large one is asked for less often. */
const REFRESH_MS = 2_000;

const chosen = signal(BALANCER);
const search = signal("");
const isLive = signal(true);

interface Shown {
  readonly root: TreeNode;
  readonly added: ReadonlySet<string>;
  readonly gone: number;
  readonly at: Date;
}

export default function TreePage() {
  useTopics("agents");
  const agents = [...store.agents.value.values()];
  const ours = agents.filter((agent) => agent.protocol === "paddler-trio.1");
  const of = ours.some((agent) => agent.id === chosen.value) ? chosen.value : BALANCER;
  const { shown, problem, load } = useTree(of);
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const all = useMemo(
    () => (shown === null ? [] : rowsOf(shown.root, closed, search.value)),
    [shown, closed, search.value],
  );
  const rows = all.slice(0, MAX_SHOWN_ROWS);
  const sums = useMemo(() => (shown === null ? null : totals(shown.root)), [shown]);
  const toggle = (path: string): void => {
    const next = new Set(closed);
    if (!next.delete(path)) {
      next.add(path);
    }
    setClosed(next);
  };
  return (
    <Page
      title="Tree"
      wide
      actions={
        <>
          <Select
            class="tree-input"
            aria-label="Whose tree"
            value={of}
            options={[
              { value: BALANCER, label: "balancer" },
              ...ours.map((agent) => ({ value: agent.id, label: `agent ${agent.label}` })),
            ]}
            onValue={(value) => {
              chosen.value = value;
            }}
          />
          <Input
            class="tree-input"
            type="search"
            aria-label="Search for a task"
            placeholder="Search"
            value={search.value}
            onValue={(value) => {
              search.value = value;
            }}
          />
          <Checkbox
            label="live"
            checked={isLive.value}
            onValue={(value: boolean) => {
              isLive.value = value;
            }}
          />
        </>
      }
    >
      <div class="tree-page">
        {agents.length > ours.length ? (
          <Note>
            {plural(agents.length - ours.length, "agent")} of Paddler {agents.length - ours.length === 1 ? "has" : "have"} no tree to
            show.
          </Note>
        ) : null}
        {problem === null ? null : <Problem error={problem} title="The tree cannot be loaded" retry={load} />}
        {shown === null || sums === null ? null : (
          <>
            <div class="row tree-sums">
              <span>
                <b>{plural(sums.tasks, "task")}</b>
                {sums.restarts > 0 ? <Badge tone="warn">{plural(sums.restarts, "restart")}</Badge> : null}
              </span>
              <span class="muted">
                as of {formatTime(shown.at)}
                {shown.added.size > 0 || shown.gone > 0 ? `: ${shown.added.size} new, ${shown.gone} gone` : ""}
              </span>
              <span class="grow" />
              <Button size="small" kind="quiet" onClick={() => setClosed(new Set())}>
                Open all
              </Button>
              <Button
                size="small"
                kind="quiet"
                onClick={() => {
                  const paths = pathsOf(shown.root);
                  paths.delete(shown.root.name);
                  setClosed(paths);
                }}
              >
                Close all
              </Button>
            </div>
            {rows.length === 0 ? (
              <Empty icon="search" title="No task matches" advice="Names, what tasks wait for, and last crashes are searched." />
            ) : (
              <TreeView rows={rows} added={shown.added} toggle={toggle} />
            )}
            {all.length > rows.length ? (
              <Note>
                {plural(all.length - rows.length, "more task")}: search for a part of a name, or close what is not of interest.
              </Note>
            ) : null}
          </>
        )}
      </div>
    </Page>
  );
}

// ------------------------------------------------------------------------------------- inside

/** The tree of one daemon, asked for again and again while the page is seen. */
function useTree(of: string): { shown: Shown | null; problem: unknown; load: () => void } {
  const [shown, setShown] = useState<Shown | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    setShown(null);
    setProblem(null);
  }, [of]);
  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<void> => {
      const began = performance.now();
      if (!document.hidden) {
        try {
          const path = of === BALANCER ? "api/v2/tree" : `api/v2/agents/${encodeURIComponent(of)}/tree`;
          const root = await api.get<TreeNode>(path, controller.signal);
          setShown((before) => {
            const { added, gone } = difference(before?.root ?? null, root);
            return { root, added, gone: gone.size, at: new Date() };
          });
          setProblem(null);
        } catch (error) {
          if (controller.signal.aborted) {
            return;
          }
          if (!(error instanceof ApiError)) {
            throw error;
          }
          setProblem(error);
        }
      }
      // a tree of many tasks costs the balancer something: a twentieth of the time at most is spent on them
      const pause_ms = Math.max(REFRESH_MS, 19 * (performance.now() - began));
      if (isLive.peek() && !controller.signal.aborted) {
        timer = setTimeout(() => void ask(), pause_ms);
      }
    };
    void ask();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [of, round, isLive.value]);
  return { shown, problem, load: () => setRound(round + 1) };
}

function TreeView({
  rows,
  added,
  toggle,
}: {
  rows: readonly TreeRow[];
  added: ReadonlySet<string>;
  toggle: (path: string) => void;
}) {
  const [focused, setFocused] = useState<string | null>(null);
  const list = useRef<HTMLUListElement>(null);
  const active = rows.some((row) => row.path === focused) ? focused : (rows[0]?.path ?? null);
  const focus = (path: string): void => {
    setFocused(path);
    list.current?.querySelector<HTMLElement>(`[data-path="${CSS.escape(path)}"]`)?.focus();
  };
  return (
    <ul
      class="tree"
      role="tree"
      aria-label="Tasks"
      ref={list}
      onKeyDown={(event) => {
        const move = active === null ? null : moveFor(event.key, rows, active);
        if (move === null || event.ctrlKey || event.metaKey || event.altKey) {
          return;
        }
        event.preventDefault();
        if (move.kind === "focus") {
          focus(move.path);
        } else {
          toggle(move.path);
        }
      }}
    >
      {rows.map((row) => (
        <Row
          key={row.path}
          row={row}
          isNew={added.has(row.path)}
          isActive={row.path === active}
          toggle={toggle}
          focused={() => setFocused(row.path)}
        />
      ))}
    </ul>
  );
}

function Row({
  row,
  isNew,
  isActive,
  toggle,
  focused,
}: {
  row: TreeRow;
  isNew: boolean;
  isActive: boolean;
  toggle: (path: string) => void;
  focused: () => void;
}) {
  const { node } = row;
  const classes = ["tree-row", isNew && "new", row.isMatch && "match", row.hasChildren && "opens"];
  return (
    <li
      role="treeitem"
      class={classes.filter(Boolean).join(" ")}
      style={{ "--depth": String(row.depth) }}
      data-path={row.path}
      tabIndex={isActive ? 0 : -1}
      aria-level={row.depth + 1}
      aria-posinset={row.position}
      aria-setsize={row.setSize}
      aria-expanded={row.hasChildren ? row.isOpen : undefined}
      onFocus={focused}
      onClick={() => {
        if (row.hasChildren) {
          toggle(row.path);
        }
      }}
    >
      <span class={row.isOpen ? "twist open" : "twist"} aria-hidden="true">
        {row.hasChildren ? <Icon name="chevron" size={12} /> : null}
      </span>
      <span class="task">{node.name}</span>
      {row.hasChildren && !row.isOpen ? <span class="count">{row.below}</span> : null}
      {node.restarts > 0 ? (
        <Badge tone="warn" title={node.last_crash ?? undefined}>
          {plural(node.restarts, "restart")}
        </Badge>
      ) : null}
      <span class="waits" title={node.last_crash === null ? node.waits_for : `${node.waits_for}; last crash: ${node.last_crash}`}>
        {node.waits_for}
      </span>
    </li>
  );
}
