import { useEffect, useRef, useState } from "preact/hooks";
import { formatDuration, formatRate } from "../../core/format";
import { Button, Dialog, Field, Input, Note } from "../../ui";
import { draft, settings } from "./chat";
import { EMPTY, added, pathTo } from "./conversation";
import { figuresOf, MOST_STREAMS, MOST_TOKENS, newRun, type Run, runStreams } from "./concurrency";
import { chatBody } from "./request_body";

const QUESTION = "Tell me a long story about the sea.";

/** How several streams at the same time do, with the settings of the page and the message that is being written. */
export function ConcurrencyTest({ deployment, close }: { deployment: string; close: () => void }) {
  const [streams, setStreams] = useState("4");
  const [tokens, setTokens] = useState("64");
  const [run, setRun] = useState<Run | null>(null);
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const isRunning = run !== null && run.endedMs === null;
  const wrong = { streams: problemOf(streams, MOST_STREAMS), tokens: problemOf(tokens, MOST_TOKENS) };
  const begin = (): void => {
    stop.current = new AbortController();
    const turn = added(EMPTY, null, { role: "user", text: draft.value.trim() || QUESTION, pictures: [] });
    const body = chatBody(pathTo(turn.conversation, turn.id), settings.value, deployment);
    setRun(newRun(Number(streams)));
    void runStreams(body, Number(streams), Number(tokens), stop.current.signal, setRun);
  };
  return (
    <Dialog
      title={`Several streams of ${deployment}`}
      close={close}
      actions={
        isRunning ? (
          <Button kind="danger" icon="stop" onClick={() => stop.current?.abort()}>
            Stop
          </Button>
        ) : (
          <Button kind="primary" icon="play" disabled={wrong.streams !== null || wrong.tokens !== null} onClick={begin}>
            Run
          </Button>
        )
      }
    >
      <div class="stack">
        <p class="muted">
          One request with so many answers, each in a slot of its own, of the message that is being written or of a
          story. <code>paddler-trio bench</code> measures with clients of its own, and compares servers.
        </p>
        <div class="fields">
          <Field label="Streams" error={wrong.streams}>
            <Input inputMode="numeric" value={streams} disabled={isRunning} onValue={setStreams} />
          </Field>
          <Field label="Tokens of each" error={wrong.tokens}>
            <Input inputMode="numeric" value={tokens} disabled={isRunning} onValue={setTokens} />
          </Field>
        </div>
        {run === null ? null : <Figures run={run} />}
      </div>
    </Dialog>
  );
}

function Figures({ run }: { run: Run }) {
  const figures = figuresOf(run);
  const rows: [string, string][] = [
    ["Streams that have begun", `${figures.begun} of ${run.streams.length}`],
    ["TTFT, middle", figures.firstMs === null ? "–" : formatDuration(figures.firstMs.middle)],
    ["TTFT, worst", figures.firstMs === null ? "–" : formatDuration(figures.firstMs.worst)],
    ["All streams together", figures.tokensPerS === null ? "–" : formatRate(figures.tokensPerS, "tok")],
    ["One stream, middle", figures.perStream === null ? "–" : formatRate(figures.perStream, "tok")],
    ["Took", run.endedMs === null ? "…" : formatDuration(run.endedMs)],
  ];
  return (
    <div aria-live="polite">
      {run.problem === null ? null : <Note tone="bad">{run.problem}</Note>}
      <table class="table figures-table" aria-label="Figures of the streams">
        <tbody>
          {rows.map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="numbers">{value}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function problemOf(text: string, most: number): string | null {
  return /^[0-9]{1,6}$/.test(text) && Number(text) >= 1 && Number(text) <= most ? null : `Give a whole number from 1 to ${most}.`;
}
