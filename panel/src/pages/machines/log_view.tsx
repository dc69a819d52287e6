/** Lines of an agent's log, or of its engines', read over its link while the page is seen. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatDate, formatTime, plural } from "../../core/format";
import { Button, Card, Checkbox, Empty, Note, Problem, Segmented } from "../../ui";
import { type LogLine, type LogPage, type Machine, withPage } from "./machine_words";

/** How long one answer waits for a line. */
const WAIT_MS = 8_000;
const AGAIN_MS = 3_000;

type Source = "agent" | "engine";

export function LogView({ machine }: { machine: Machine }) {
  const [source, setSource] = useState<Source | null>(null);
  const [follows, setFollows] = useState(true);
  return (
    <Card
      title="Logs"
      actions={
        <>
          <Segmented<Source | "none">
            label="Log"
            value={source ?? "none"}
            options={[
              { value: "none", label: "none" },
              { value: "agent", label: "agent" },
              { value: "engine", label: "engine" },
            ]}
            onValue={(value) => setSource(value === "none" ? null : value)}
          />
          <Checkbox label="follow" checked={follows} onValue={setFollows} />
        </>
      }
    >
      {source === null ? (
        <p class="muted">Nothing is asked of the agent until you choose a log.</p>
      ) : (
        <Lines key={source} host={machine.host} source={source} follows={follows} />
      )}
    </Card>
  );
}

function Lines({ host, source, follows }: { host: string; source: Source; follows: boolean }) {
  const [lines, setLines] = useState<readonly LogLine[] | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [note, setNote] = useState("");
  const [round, setRound] = useState(0);
  const known = useRef<LogPage | null>(null);
  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<void> => {
      const before = known.current;
      let pause_ms = 0;
      if (document.hidden) {
        pause_ms = AGAIN_MS;
      } else {
        try {
          const query = new URLSearchParams({ source });
          if (before !== null) {
            query.set("after", String(before.last));
            query.set("life", before.life);
            query.set("wait_ms", follows ? String(WAIT_MS) : "0");
          }
          const page = await api.get<LogPage>(`api/v2/agents/${encodeURIComponent(host)}/logs?${query}`, controller.signal);
          const isSame = before === null || page.life === before.life;
          known.current = page;
          setLines((shown) => withPage(shown ?? [], page, isSame));
          setProblem(null);
          if (!isSame) {
            setNote("The agent was started anew.");
          } else if (page.missed > 0 && before !== null) {
            setNote(`${plural(page.missed, "line")} came too fast and are gone.`);
          }
        } catch (error) {
          if (controller.signal.aborted) {
            return;
          }
          if (!(error instanceof ApiError)) {
            throw error;
          }
          setProblem(error);
          pause_ms = AGAIN_MS;
        }
      }
      if (follows && !controller.signal.aborted) {
        timer = setTimeout(() => void ask(), pause_ms);
      }
    };
    void ask();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [host, source, follows, round]);
  return (
    <div class="stack">
      {problem === null ? null : <Problem error={problem} title={follows ? "No lines came; they are asked for again" : "No lines came"} retry={() => setRound(round + 1)} />}
      {note ? <Note tone="warn">{note}</Note> : null}
      {lines === null ? null : lines.length === 0 ? (
        <Empty icon="logs" title="No line yet" advice={source === "engine" ? "llama.cpp writes when it loads a model." : "The agent writes what its --log-level lets through."} />
      ) : (
        <Shown lines={lines} follows={follows} />
      )}
      {follows ? null : (
        <p>
          <Button size="small" icon="retry" onClick={() => setRound(round + 1)}>
            Newer lines
          </Button>
        </p>
      )}
    </div>
  );
}

function Shown({ lines, follows }: { lines: readonly LogLine[]; follows: boolean }) {
  const list = useRef<HTMLOListElement>(null);
  const last = lines.at(-1)?.n;
  useEffect(() => {
    if (follows && list.current !== null) {
      list.current.scrollTop = list.current.scrollHeight;
    }
  }, [last, follows]);
  return (
    <ol class="machine-log" ref={list} tabIndex={0} aria-label="Log lines, the newest last">
      {lines.map((line) => {
        const time = new Date(line.time);
        return (
          <li key={line.n} class={line.level}>
            <time dateTime={line.time} title={formatDate(time)}>
              {formatTime(time, true)}
            </time>
            <b>{line.level}</b>
            <span>{line.text}</span>
          </li>
        );
      })}
    </ol>
  );
}
