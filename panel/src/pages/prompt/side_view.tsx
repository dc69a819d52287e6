import { useEffect, useRef, useState } from "preact/hooks";
import { Badge, Button, Icon, TextArea, toast } from "../../ui";
import { endingOf } from "./advice";
import { AnswerView, CopyButton } from "./answer_view";
import { CallForm } from "./call_form";
import { type Side, answer, edit, sendResults } from "./chat";
import { type AnswerTurn, type Conversation, type ToolTurn, type Turn, type UserTurn, branches, choose, path } from "./conversation";
import type { CopyRequest } from "./copy_dialog";

/** The shown turns of one side. `copy` opens the dialog with the request behind an answer. */
export function SideView({
  side,
  deployment,
  copy,
}: {
  side: Side;
  deployment: string;
  copy: (request: CopyRequest) => void;
}) {
  const conversation = side.conversation.value;
  const turns = path(conversation);
  const end = useEnd(conversation);
  const isRunning = side.running.value !== null;
  const guarded = (work: () => void): boolean => {
    try {
      work();
      return true;
    } catch (error) {
      toast("bad", error instanceof Error ? error.message : String(error));
      return false;
    }
  };
  return (
    <div class="turns">
      {turns.map((turn, index) => {
        const isLast = index === turns.length - 1;
        switch (turn.role) {
          case "user":
            return (
              <UserView
                key={turn.id}
                turn={turn}
                nav={<Branches side={side} id={turn.id} />}
                mayEdit={!isRunning}
                send={(text) => guarded(() => edit(side, turn.id, text, deployment))}
              />
            );
          case "tool":
            return <ToolView key={turn.id} turn={turn} />;
          case "assistant":
            return (
              <AssistantView
                key={turn.id}
                turn={turn}
                side={side}
                again={isRunning || turn.parent === null ? undefined : () => guarded(() => answer(side, turn.parent ?? 0, deployment))}
                copy={() => copy({ side, parent: turn.parent, deployment: turn.answer.deployment })}
              >
                {isLast && turn.answer.phase === "done" && turn.answer.calls.length > 0 ? (
                  <CallForm
                    calls={turn.answer.calls}
                    send={(results) => guarded(() => sendResults(side, turn.id, results, deployment))}
                  />
                ) : null}
              </AssistantView>
            );
        }
      })}
      <p class="unseen" role="status">
        {spoken(turns.at(-1))}
      </p>
      <div ref={end} class="turns-end" />
    </div>
  );
}

// ------------------------------------------------------------------------------------- inside

/** Longer messages scroll in themselves. */
const LONG_CHARS = 2_000;

/** What a screen reader says of the newest answer; the text itself would be said again with each piece. */
function spoken(turn: Turn | undefined): string {
  if (turn?.role !== "assistant") {
    return "";
  }
  switch (turn.answer.phase) {
    case "waiting":
      return ""; // its place in the queue is said where it is shown
    case "streaming":
      return "The answer is being written.";
    case "failed":
      return ""; // the alert says it
    default:
      return `The answer is over: ${endingOf(turn.answer).text}.`;
  }
}

function UserView({
  turn,
  nav,
  mayEdit,
  send,
}: {
  turn: UserTurn;
  nav: preact.ComponentChildren;
  mayEdit: boolean;
  /** False: it was not sent. */
  send: (text: string) => boolean;
}) {
  const [text, setText] = useState<string | null>(null);
  const isLong = turn.text.length > LONG_CHARS;
  return (
    <article class="turn user" aria-label="You">
      {turn.pictures.length > 0 ? (
        <div class="turn-pictures">
          {turn.pictures.map((picture, index) => (
            <img key={index} src={picture.url} alt={picture.name || "picture"} />
          ))}
        </div>
      ) : null}
      {text === null ? (
        <p class={isLong ? "user-text long" : "user-text"} tabIndex={isLong ? 0 : undefined}>
          {turn.text}
        </p>
      ) : (
        <form
          class="edit"
          onSubmit={(event) => {
            event.preventDefault();
            if (send(text)) {
              setText(null);
            }
          }}
        >
          <TextArea aria-label="Edited message" value={text} onValue={setText} rows={3} />
          <div class="actions">
            <Button size="small" onClick={() => setText(null)}>
              Cancel
            </Button>
            <Button size="small" kind="primary" type="submit" disabled={text.trim() === ""}>
              Send as a branch
            </Button>
          </div>
        </form>
      )}
      <div class="turn-tools">
        {nav}
        <CopyButton text={turn.text} label="Copy the message" />
        {text === null ? (
          <Button kind="quiet" size="small" icon="edit" aria-label="Edit the message" disabled={!mayEdit} onClick={() => setText(turn.text)} />
        ) : null}
      </div>
    </article>
  );
}

function ToolView({ turn }: { turn: ToolTurn }) {
  return (
    <article class="turn tool" aria-label="Results of tools">
      {turn.results.map((result) => (
        <div class="call" key={result.callId}>
          <header>
            <Icon name="check" /> <code>{result.name}</code> <span>returned</span>
          </header>
          <pre tabIndex={0}>{result.text}</pre>
        </div>
      ))}
    </article>
  );
}

function AssistantView({
  turn,
  side,
  again,
  copy,
  children,
}: {
  turn: AnswerTurn;
  side: Side;
  again: (() => void) | undefined;
  copy: () => void;
  children: preact.ComponentChildren;
}) {
  const { answer } = turn;
  return (
    <article class="turn assistant" aria-label={`Answer of ${answer.deployment}`}>
      {answer.isRaw ? (
        <p>
          <Badge tone="info" title="Thinking and calls are not parsed: it is the text as the model wrote it.">
            template under trial
          </Badge>
        </p>
      ) : null}
      <AnswerView answer={answer}>
        <Branches side={side} id={turn.id} />
        <CopyButton text={answer.content} label="Copy the answer" />
        <Button kind="quiet" size="small" icon="retry" aria-label="Answer again" disabled={again === undefined} onClick={again} />
        <Button kind="quiet" size="small" onClick={copy}>
          curl / Python
        </Button>
      </AnswerView>
      {children}
    </article>
  );
}

/** ‹ 2/3 › between the branches of a turn; nothing if there is one. */
function Branches({ side, id }: { side: Side; id: number }) {
  const all = branches(side.conversation.value, id);
  if (all.length < 2) {
    return null;
  }
  const at = all.indexOf(id);
  const go = (step: number) => () => {
    const target = all[at + step];
    if (target !== undefined) {
      side.conversation.value = choose(side.conversation.value, target);
    }
  };
  return (
    <span class="branches" role="group" aria-label={`Branch ${at + 1} of ${all.length}`}>
      <button type="button" aria-label="Branch before" disabled={at === 0} onClick={go(-1)}>
        ‹
      </button>
      <span>
        {at + 1}/{all.length}
      </span>
      <button type="button" aria-label="Next branch" disabled={at === all.length - 1} onClick={go(1)}>
        ›
      </button>
    </span>
  );
}

/** The end of the turns stays in sight while they grow, as long as the person has not scrolled away from it. */
function useEnd(conversation: Conversation) {
  const end = useRef<HTMLDivElement>(null);
  const isInSight = useRef(true);
  useEffect(() => {
    const element = end.current;
    if (element === null) {
      return;
    }
    const observer = new IntersectionObserver(
      (entries) => {
        isInSight.current = entries.some((entry) => entry.isIntersecting);
      },
      { rootMargin: "0px 0px 120px 0px" },
    );
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (isInSight.current && conversation.turns.size > 0) {
      end.current?.scrollIntoView({ block: "end" });
    }
  }, [conversation]);
  return end;
}
