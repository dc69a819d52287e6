import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { formatCount, formatDuration, formatPercent, plural } from "../../core/format";
import { hrefOf } from "../../core/router";
import { Badge, Button, Icon } from "../../ui";
import { adviceFor, endingOf } from "./advice";
import { type Answer, type ToolCall, type Waiting, isObject, isRunning } from "./answer";
import { Markdown } from "./markdown_view";
import { copyText } from "./safe_markdown";

/** An answer: thinking apart, text, calls, what went wrong, and figures; `children` stand beside the figures. */
export function AnswerView({ answer, children }: { answer: Answer; children?: ComponentChildren }) {
  const isThinking = answer.phase === "streaming" && answer.content === "" && answer.calls.length === 0;
  const json = useMemo(() => jsonOf(answer), [answer.content, answer.phase]);
  return (
    <div class="answer" data-phase={answer.phase} aria-busy={isRunning(answer) || undefined}>
      {answer.reasoning !== "" ? <Thinking text={answer.reasoning} isOpen={isThinking} /> : null}
      {answer.isRaw ? (
        <pre class="raw-text">{answer.content}</pre>
      ) : answer.content === "" ? null : (
        <Markdown text={json === null ? answer.content : `\`\`\`json\n${json}\n\`\`\``} />
      )}
      {answer.calls.map((call) => (
        <Call key={call.id} call={call} isOver={!isRunning(answer)} />
      ))}
      {answer.phase === "waiting" ? <WaitingLine waiting={answer.waiting} /> : null}
      {answer.phase === "done" && answer.content === "" && answer.calls.length === 0 ? (
        <p class="muted">The answer is empty.</p>
      ) : null}
      {answer.failure !== null ? (
        <div class="problem" role="alert">
          <Icon name="warning" />
          <div>
            <strong>{answer.failure.status === 0 ? "No whole answer" : `Refused with ${answer.failure.status}`}</strong>
            <p>
              {answer.failure.field === null ? null : <code>{answer.failure.field}</code>} {answer.failure.text}
            </p>
            <p class="muted">{adviceFor(answer.failure)}</p>
          </div>
        </div>
      ) : null}
      <div class="answer-foot">
        <AnswerFigures answer={answer} />
        <div class="answer-tools">{children}</div>
      </div>
    </div>
  );
}

/** Agent, tokens, speed, TTFT, cached tokens and the ending; what is not known is n/a. */
export function AnswerFigures({ answer }: { answer: Answer }) {
  const { counts, record } = answer;
  const ending = endingOf(answer);
  if (answer.phase === "waiting") {
    return <div class="answer-figures" />;
  }
  const tokens = counts?.tokens ?? null;
  const elapsed = (answer.endedMs ?? performance.now()) - (answer.firstMs ?? answer.sentMs);
  const measured = answer.chunks > 1 && elapsed > 0 ? ((answer.chunks - 1) / elapsed) * 1000 : null;
  const speed = counts?.tokensPerS ?? measured;
  const ttft = record?.ttftMs ?? (answer.firstMs === null ? null : answer.firstMs - answer.sentMs);
  const cached = counts?.cachedTokens ?? record?.cachedTokens ?? null;
  const prompt = counts?.promptTokens ?? null;
  return (
    <dl class="answer-figures">
      <Fact name="agent" value={record === null || record.agents.length === 0 ? "n/a" : record.agents.join(" → ")} />
      <Fact
        name="tokens"
        value={tokens === null ? `≈ ${answer.chunks}` : formatCount(tokens)}
        title={counts?.reasoningTokens ? `${counts.reasoningTokens} of them are thinking` : undefined}
      />
      <Fact name="tokens/s" value={speed === null ? "n/a" : speed.toFixed(speed < 100 ? 1 : 0)} />
      <Fact
        name="TTFT"
        value={ttft === null ? "n/a" : formatDuration(ttft)}
        title={record?.queueMs ? `of which ${formatDuration(record.queueMs)} in the queue` : undefined}
      />
      <Fact
        name="cached"
        value={
          cached === null || prompt === null || prompt === 0
            ? "n/a"
            : `${formatCount(cached)} of ${formatCount(prompt)}`
        }
        title={cached !== null && prompt ? `${formatPercent(cached / prompt)} of the prompt's tokens` : undefined}
      />
      <div class="fact">
        <dt class="unseen">ending</dt>
        <dd>
          <Badge tone={ending.tone} dot>
            {ending.text}
          </Badge>
        </dd>
      </div>
      {record === null ? null : (
        <div class="fact">
          <dt class="unseen">request</dt>
          <dd>
            <a href={hrefOf("requests", [record.key])}>waterfall</a>
          </dd>
        </div>
      )}
    </dl>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  return (
    <Button
      kind="quiet"
      size="small"
      icon={done ? "check" : "copy"}
      aria-label={done ? "Copied" : label}
      onClick={() => {
        void copyText(text).then(setDone);
        setTimeout(() => setDone(false), 2000);
      }}
    />
  );
}

// ------------------------------------------------------------------------------------- inside

function Fact({ name, value, title }: { name: string; value: string; title?: string | undefined }) {
  return (
    <div class="fact" title={title}>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Thinking({ text, isOpen }: { text: string; isOpen: boolean }) {
  const [wanted, setWanted] = useState<boolean | null>(null);
  return (
    <details
      class="thinking"
      open={wanted ?? isOpen}
      onToggle={(event) => {
        if (event.currentTarget.open !== (wanted ?? isOpen)) {
          setWanted(event.currentTarget.open);
        }
      }}
    >
      <summary>
        {isOpen ? "Thinking…" : "Thoughts"} <span class="muted">{plural(text.trim().split(/\s+/).length, "word")}</span>
      </summary>
      <Markdown text={text} />
    </details>
  );
}

function WaitingLine({ waiting }: { waiting: Waiting | null }) {
  return (
    <p class="waiting" role="status">
      <span class="spinner" aria-hidden="true" />
      {waitingText(waiting)}
    </p>
  );
}

function waitingText(waiting: Waiting | null): string {
  switch (waiting?.kind) {
    case "queued": {
      const why = waiting.reason === "" ? "" : `: ${waiting.reason}`;
      const when = waiting.startS === null ? "" : `, about ${formatDuration(waiting.startS * 1000)} to go`;
      return waiting.position === 0
        ? `Next in the queue${when}${why}`
        : `In the queue behind ${plural(waiting.position, "request")}${when}${why}`;
    }
    case "prefilling":
      return `Reading the prompt: ${formatCount(waiting.done)} of ${plural(waiting.total, "token")}`;
    default:
      return "Waiting for the first token";
  }
}

function Call({ call, isOver }: { call: ToolCall; isOver: boolean }) {
  const { text, isWhole } = prettyArguments(call.arguments);
  return (
    <div class="call">
      <header>
        <Icon name="open" /> <span>calls</span> <code>{call.name}</code>
        {isOver && !isWhole ? <Badge tone="warn">arguments are cut off</Badge> : null}
      </header>
      <pre tabIndex={0}>{text}</pre>
    </div>
  );
}

function prettyArguments(text: string): { text: string; isWhole: boolean } {
  try {
    return { text: JSON.stringify(JSON.parse(text), null, 2), isWhole: true };
  } catch {
    return { text, isWhole: false };
  }
}

/** An answer that is one JSON object or list, laid out; null for others. */
function jsonOf(answer: Answer): string | null {
  const text = answer.content.trim();
  if (answer.phase !== "done" || !/^[{[]/.test(text)) {
    return null;
  }
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) || Array.isArray(value) ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}
