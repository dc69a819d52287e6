import { useEffect, useState } from "preact/hooks";
import { hrefOf } from "../../core/router";
import { store, useTopics } from "../../core/store";
import { second } from "../../core/time";
import { Button, Card, Dialog, Empty, Note, Page, Problem, Segmented } from "../../ui";
import { Chart } from "./chart";
import { ChartState } from "./chart_state";
import { KEY_HELP } from "./commands";
import { Legend } from "./legend";
import { TimelineSource } from "./source";
import { TimelineTable } from "./table";

const SPANS = [
  { value: "10000", label: "10 s" },
  { value: "60000", label: "1 min" },
  { value: "300000", label: "5 min" },
] as const;

type Form = "chart" | "table";

export default function TimelinePage() {
  useTopics("agents", "balancer", "requests");
  const [{ source, state }] = useState(begun);
  const [form, setForm] = useState<Form>("chart");
  const [showsKeys, setShowsKeys] = useState(false);
  useEffect(() => source.follow(state), [source, state]);
  const { follows, span_ms } = state.view.value;
  const agents = store.agents.value.size;
  const isEmpty = store.known.value.has("agents") && agents === 0 && state.rows.value.rows.length <= 2;
  return (
    <Page
      title="Timeline"
      wide
      actions={
        <>
          <Segmented
            label="Show as"
            options={[
              { value: "chart", label: "Chart" },
              { value: "table", label: "Table" },
            ]}
            value={form}
            onValue={setForm}
          />
          <Segmented
            label="Time in sight"
            options={SPANS}
            value={(SPANS.find((each) => Number(each.value) === Math.round(span_ms))?.value ?? "") as (typeof SPANS)[number]["value"]}
            onValue={(value) => state.show(Number(value))}
          />
          <span class="row nowrap">
            <Button kind="quiet" aria-label="Zoom out" onClick={() => state.zoom(1.5, 0.5)}>
              −
            </Button>
            <Button kind="quiet" icon="plus" aria-label="Zoom in" onClick={() => state.zoom(1 / 1.5, 0.5)} />
          </span>
          <Button
            class="timeline-follow"
            kind={follows ? "plain" : "primary"}
            icon={follows ? "pause" : "play"}
            aria-pressed={!follows}
            onClick={() => state.toggleFollow()}
          >
            {follows ? "Pause" : "Follow"}
          </Button>
        </>
      }
    >
      {source.error.value !== null ? (
        <Problem title="What happened before cannot be shown." error={source.error.value} retry={() => source.retry()} />
      ) : null}
      {isEmpty ? (
        <Card>
          <Empty
            icon="timeline"
            title="No agent yet"
            advice="Slots belong to agents. As soon as one joins, its slots are here, and what happens in them."
          >
            <Button kind="primary" onClick={() => { location.hash = hrefOf("fleet"); }}>
              To the fleet
            </Button>
          </Empty>
        </Card>
      ) : (
        <Card class="timeline-card" label="Timeline">
          {form === "chart" ? (
            <>
              <Chart state={state} />
              <footer class="timeline-foot">
                <Legend />
                <Button size="small" kind="quiet" icon="info" onClick={() => setShowsKeys(true)}>
                  Keys and gestures
                </Button>
              </footer>
            </>
          ) : (
            <Ticking state={state} />
          )}
        </Card>
      )}
      <Remarks state={state} source={source} />
      {showsKeys ? <Keys close={() => setShowsKeys(false)} /> : null}
    </Page>
  );
}

function begun(): { source: TimelineSource; state: ChartState } {
  const source = new TimelineSource();
  const state = new ChartState(source.clock);
  if (window.innerWidth < 640) {
    state.show(60_000);
  }
  return { source, state };
}

/** The table, and the time, which otherwise the chart moves on. */
function Ticking({ state }: { state: ChartState }) {
  const ticks = second.value;
  useEffect(() => state.advance(), [ticks, state]);
  return <TimelineTable state={state} />;
}

/** What the chart cannot show, and why. */
function Remarks({ state, source }: { state: ChartState; source: TimelineSource }) {
  second.value;
  const { forgotten_ms } = state.history;
  if (forgotten_ms !== null) {
    return (
      <Note>
        So much happens that single requests are kept for the last {Math.max(1, Math.round((state.now_ms - forgotten_ms) / 1000))} s
        only. The rows of whole agents go back further.
      </Note>
    );
  }
  return source.partial.value ? (
    <Note>The chart began with the newest 4,000 requests. What was before them is not shown.</Note>
  ) : null;
}

function Keys({ close }: { close: () => void }) {
  return (
    <Dialog title="Keys and gestures" close={close}>
      <p class="muted">Keys work while the chart has the focus.</p>
      <dl class="timeline-help">
        {[
          ...KEY_HELP,
          ["Drag, Shift + wheel", "move through time"] as const,
          ["Ctrl + wheel, pinch", "zoom"] as const,
          ["Click", "open a request; open or close an agent"] as const,
        ].map(([keys, effect]) => (
          <div key={keys}>
            <dt>{keys}</dt>
            <dd>{effect}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
