/** A chat template, written and tried on a conversation while it is written. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatInteger, plural } from "../../core/format";
import { store } from "../../core/store";
import type { TemplatePreview } from "../../types";
import { Button, Confirm, Dialog, Note, Segmented, textOf, toast } from "../../ui";
import { SAMPLES, sampleOf } from "./samples";

const TYPING_MS = 400;
const METADATA_KEY = "tokenizer.chat_template";

type Tried =
  | { state: "nothing" | "asking" }
  | { state: "prompt"; prompt: string; num_tokens: number }
  | { state: "wrong"; text: string; line: number | null }
  | { state: "unknown"; text: string };

export function TemplateDialog({
  deployment,
  source,
  take,
  close,
}: {
  /** Whose agents try it. */
  deployment: string;
  source: string;
  take: (text: string) => void;
  close: () => void;
}) {
  const [text, setText] = useState(source);
  const [sample, setSample] = useState("chat");
  const [isLeaving, setLeaving] = useState(false);
  const tried = useTried(deployment, text, sample);
  const line = tried.state === "wrong" ? tried.line : null;
  const isChanged = text !== source;
  return (
    <>
      <Dialog
        title={`Chat template of ${deployment}`}
        size="wide"
        close={close}
        mayClose={() => {
          setLeaving(isChanged);
          return !isChanged;
        }}
        actions={
          <>
            <span class="muted grow">{plural(text === "" ? 0 : text.split("\n").length, "line")}, {formatInteger(text.length)} characters</span>
            <Button onClick={() => (isChanged ? setLeaving(true) : close())}>Cancel</Button>
            <Button
              kind="primary"
              disabled={!isChanged}
              onClick={() => {
                take(text);
                close();
              }}
            >
              Use this template
            </Button>
          </>
        }
      >
        <div class="template-editor">
          <section aria-label="Template">
            <div class="row head">
              <h3>Jinja</h3>
              <span class="grow" />
              <OwnTemplate deployment={deployment} take={setText} />
            </div>
            <Editor text={text} line={line} setText={setText} />
          </section>
          <section aria-label="Preview">
            <div class="row head">
              <h3>Prompt</h3>
              <span class="grow" />
              <Segmented
                label="Conversation"
                options={SAMPLES.map(({ id, title }) => ({ value: id, label: title }))}
                value={sample}
                onValue={setSample}
              />
            </div>
            <Preview tried={tried} />
          </section>
        </div>
      </Dialog>
      {isLeaving ? (
        <Confirm title="Leave without this template?" action="Drop my changes" confirm={close} close={() => setLeaving(false)}>
          <p>What you wrote here is not kept.</p>
        </Confirm>
      ) : null}
    </>
  );
}

function Editor({ text, line, setText }: { text: string; line: number | null; setText: (text: string) => void }) {
  const gutter = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const count = useMemo(() => text.split("\n").length, [text]);
  return (
    <div class="code-editor">
      <div class="gutter" ref={gutter} aria-hidden="true">
        {Array.from({ length: count }, (_, place) => (
          <span key={place} class={place + 1 === line ? "wrong" : undefined}>
            {place + 1}
          </span>
        ))}
      </div>
      <textarea
        ref={area}
        aria-label="Template"
        aria-invalid={line !== null || undefined}
        aria-describedby="template-problem"
        value={text}
        spellcheck={false}
        wrap="off"
        autocomplete="off"
        placeholder="{% for message in messages %}…"
        onInput={(event) => setText(event.currentTarget.value)}
        onScroll={(event) => {
          if (gutter.current) {
            gutter.current.scrollTop = event.currentTarget.scrollTop;
          }
        }}
      />
    </div>
  );
}

function Preview({ tried }: { tried: Tried }) {
  switch (tried.state) {
    case "nothing":
      return <p class="muted preview-note">Write a template, or begin with the model's own.</p>;
    case "asking":
      return (
        <p class="muted preview-note" role="status">
          <span class="spinner" aria-hidden="true" /> An agent tries it …
        </p>
      );
    case "wrong":
      return (
        <div id="template-problem" class="problem" role="alert">
          <div>
            <b>{tried.line === null ? "The template fails" : `Line ${tried.line}`}</b>
            <p>{tried.text}</p>
          </div>
        </div>
      );
    case "unknown":
      return <Note tone="warn">{tried.text}</Note>;
    case "prompt":
      return (
        <>
          <pre class="prompt" tabIndex={0} aria-label="Prompt">
            {tried.prompt}
          </pre>
          <p class="field-help">{plural(tried.num_tokens, "token")}, as the model gets it.</p>
        </>
      );
  }
}

/** The newest answer about this text and conversation, some time after the last keystroke. */
function useTried(deployment: string, text: string, sample: string): Tried {
  const [tried, setTried] = useState<Tried>({ state: "nothing" });
  useEffect(() => {
    if (text.trim() === "") {
      setTried({ state: "nothing" });
      return undefined;
    }
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      setTried((before) => (before.state === "nothing" ? { state: "asking" } : before));
      const found = await tryOut(deployment, text, sample, stop.signal);
      if (!stop.signal.aborted) {
        setTried(found);
      }
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [deployment, text, sample]);
  return tried;
}

async function tryOut(deployment: string, chat_template: string, sample: string, signal: AbortSignal): Promise<Tried> {
  const { messages, tools, thinking } = sampleOf(sample);
  const body = { deployment, chat_template, messages, tools, thinking };
  try {
    return { state: "prompt", ...(await api.send<TemplatePreview>("POST", "api/v2/template/preview", body, signal)) };
  } catch (error) {
    if (error instanceof ApiError && error.status === 400) {
      const line = (error.body as { line?: unknown } | undefined)?.line;
      return { state: "wrong", text: error.text, line: typeof line === "number" ? line : null };
    }
    const isAlone = error instanceof ApiError && error.status === 503;
    return { state: "unknown", text: isAlone ? `No agent serves ${deployment} now, so nothing can try the template.` : textOf(error) };
  }
}

function OwnTemplate({ deployment, take }: { deployment: string; take: (text: string) => void }) {
  const [busy, setBusy] = useState(false);
  const agent = [...store.agents.value.values()].find(
    (each) => each.deployment === deployment && each.is_accepting && each.slots_total > 0,
  );
  const load = async (): Promise<void> => {
    setBusy(true);
    try {
      const path = `api/v1/agent/${encodeURIComponent(agent?.id ?? "")}/model_metadata`;
      const found = await api.get<{ metadata?: Record<string, string> } | null>(path);
      const own = found?.metadata?.[METADATA_KEY];
      own === undefined ? toast("warn", "The model has no chat template of its own.") : take(own);
    } catch (error) {
      toast("bad", textOf(error));
    }
    setBusy(false);
  };
  return agent ? (
    <Button size="small" busy={busy} onClick={load}>
      Insert the model's own
    </Button>
  ) : null;
}
