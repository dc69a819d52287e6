import { useState } from "preact/hooks";
import { clientOf, formatDate, formatDuration, formatInteger, formatPercent, formatRate } from "../../core/format";
import { hrefOf } from "../../core/router";
import { info } from "../../core/api";
import { store } from "../../core/store";
import { now, wallTime } from "../../core/time";
import type { RequestDetail, RequestView } from "../../types";
import { Badge, Button, Card, Copy, Dialog, Empty, Facts, Figure, Figures, Note, Page, Problem, Segmented, toast } from "../../ui";
import { CancelRequest } from "./cancel";
import { agentsOf, cachedPart, durationMs, firstTokenMs, promptTokens, queueMs, tokensPerSecond } from "./figures";
import { isGone, useRequest } from "./use_request";
import { type Reach, Waterfall } from "./waterfall";

/** One request from its arrival to its ending. */
export function RequestPage({ name }: { name: string }) {
  const { detail, error, reload } = useRequest(name);
  const [reach, setReach] = useState<Reach>("whole");
  const [cancels, setCancels] = useState(false);
  const view = detail?.request;
  const outcome = view?.state;
  const mayCancel = view !== undefined && view.phase !== "ended" && view.phase !== "stopping";
  return (
    <Page
      title={view === undefined ? `Request ${name}` : "Request"}
      actions={
        <>
          <a class="button plain" href={hrefOf("requests", [], { state: view?.phase === "ended" ? "finished" : null })}>
            All requests
          </a>
          {detail !== null ? <CopyJson detail={detail} /> : null}
          {view !== undefined && view.phase !== "ended" ? (
            <Button kind="danger" icon="stop" disabled={!mayCancel} onClick={() => setCancels(true)}>
              Cancel
            </Button>
          ) : null}
        </>
      }
    >
      {error !== null && isGone(error) && detail === null ? (
        <Card>
          <Empty
            icon="search"
            title="The balancer does not have this request"
            advice="It keeps the last 10,000 that ended, until it is started anew. The number may also be of another balancer."
          >
            <Button icon="retry" onClick={reload}>
              Look again
            </Button>
          </Empty>
        </Card>
      ) : error !== null ? (
        <Problem title="The request cannot be shown." error={error} retry={reload} />
      ) : null}
      {view === undefined || outcome === undefined ? (
        error === null ? <div class="skeleton" role="status" aria-busy="true" aria-label="The request is being fetched" /> : null
      ) : (
        <>
          <Card label="Summary">
            <div class="request-title">
              <span class="mono request-id">{view.id || view.key}</span>
              <Badge tone={outcome.severity}>{outcome.word}</Badge>
            </div>
            <Summary view={view} />
          </Card>
          <Card
            title="Waterfall"
            actions={
              <Segmented
                label="Scale"
                options={[
                  { value: "whole", label: "Whole" },
                  { value: "first", label: "To the first token" },
                ]}
                value={reach}
                onValue={setReach}
              />
            }
          >
            <Waterfall view={view} reach={reach} />
          </Card>
          <div class="request-columns-2">
            <Card title="What happened">
              {detail !== null && detail.explanation.length > 0 ? (
                <ol class="request-story">
                  {detail.explanation.map((each) => (
                    <li key={each}>{each}</li>
                  ))}
                </ol>
              ) : (
                <p class="muted">There is nothing to explain yet.</p>
              )}
            </Card>
            <Card title="Facts">
              <Facts
                rows={[
                  ["Number", String(view.key)],
                  ["Client", clientOf(view)],
                  ["Deployment", view.deployment],
                  ...(view.preset == null ? [] : [["Preset", view.preset] as const]),
                  ["Route", view.route ?? "–"],
                  ["Kind", view.kind],
                  ["Trace", view.trace == null ? "–" : <Copy key="trace" text={view.trace} label="Copy the trace id" inline />],
                  ["Arrived", formatDate(wallTime(view.arrived_ms))],
                  ["Agents", agentsOf(view).join(" → ") || "none yet"],
                  ["Continuations", formatInteger(view.continuations)],
                ]}
              />
            </Card>
          </div>
          <Text view={view} />
        </>
      )}
      {cancels && view !== undefined ? <CancelRequest view={view} close={() => setCancels(false)} done={reload} /> : null}
    </Page>
  );
}

function Summary({ view }: { view: RequestView }) {
  const now_ms = now();
  return (
    <Figures>
      <Figure label="Duration" value={formatDuration(durationMs(view, now_ms))} wide />
      <Figure label="In the queue" value={formatDuration(queueMs(view, now_ms))} wide />
      <Figure label="Time to first token" value={formatDuration(firstTokenMs(view))} wide />
      <Figure label="Prompt" value={formatInteger(promptTokens(view))} unit="tokens" />
      <Figure label="Cached" value={formatPercent(cachedPart(view))} />
      <Figure label="Answer" value={formatInteger(view.tokens)} unit="tokens" />
      <Figure label="Speed" value={formatRate(tokensPerSecond(view, now_ms), "tok")} wide />
    </Figures>
  );
}

/** The texts, if the operator has them kept. */
function Text({ view }: { view: RequestView }) {
  const { capture } = view;
  if (capture) {
    return (
      <div class="request-columns-2">
        <Card title="Request text">
          <pre class="request-text-box" tabIndex={0}>
            {capture.request}
          </pre>
        </Card>
        <Card title="Answer text">
          <pre class="request-text-box" tabIndex={0}>
            {capture.answer || "Nothing yet."}
          </pre>
        </Card>
      </div>
    );
  }
  const captures = store.balancer.value?.capture ?? info.value?.capture ?? false;
  return captures ? (
    <Note>No text of this request was kept.</Note>
  ) : (
    <Note>
      Prompts and answers are not kept, only times. Start the balancer with <code>--capture-prompts</code> to see the first
      4 KiB of both here.
    </Note>
  );
}

function CopyJson({ detail }: { detail: RequestDetail }) {
  const [shown, setShown] = useState<string | null>(null);
  const copy = async (): Promise<void> => {
    const text = JSON.stringify(detail, null, 2);
    try {
      await navigator.clipboard.writeText(text);
      toast("ok", "The request is in the clipboard, as JSON.");
    } catch {
      setShown(text); // browsers keep the clipboard for secure origins
    }
  };
  return (
    <>
      <Button icon="copy" onClick={copy}>
        Copy as JSON
      </Button>
      {shown !== null ? (
        <Dialog title="The request as JSON" close={() => setShown(null)}>
          <p class="muted">This browser lets no page at this address use the clipboard. Select the text and copy it.</p>
          <textarea class="input mono request-json" readOnly rows={16} value={shown} aria-label="JSON" onFocus={(event) => event.currentTarget.select()} />
        </Dialog>
      ) : null}
    </>
  );
}
