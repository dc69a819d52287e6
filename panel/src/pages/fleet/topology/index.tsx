import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { effect } from "@preact/signals";
import { clientOf, formatAge } from "../../../core/format";
import { hrefOf, navigate } from "../../../core/router";
import { store } from "../../../core/store";
import { theme } from "../../../core/theme";
import { now, second } from "../../../core/time";
import { Badge, Button, Card } from "../../../ui";
import { LaneBook } from "../lanes";
import { AsText } from "./as_text";
import { cellBox, tileAt } from "./layout";
import { Painter } from "./painter";
import { ClientBook, type Picture, pictureOf, sentenceOf } from "./picture";

const LEGEND = [
  ["queued", "--c-queue"],
  ["prefill", "--c-prefill"],
  ["decode", "--c-decode"],
  ["stopping", "--c-stop"],
  ["free", "--c-idle"],
] as const;

const PHASES = { q: "queued in the engine", p: "prefill", d: "decode", s: "stopping" } as const;
/** How often the sentence for screen readers changes, in seconds. */
const SAID_EVERY_S = 5;

interface Pointed {
  left: number;
  top: number;
  agent: number;
  lane: number | null;
}

/** Where every request is: clients, queues, agents, slots. */
export function Topology() {
  const box = useRef<HTMLDivElement>(null);
  const base = useRef<HTMLCanvasElement>(null);
  const above = useRef<HTMLCanvasElement>(null);
  const painter = useRef<Painter | null>(null);
  const picture = useRef<Picture | null>(null);
  const books = useMemo(() => ({ lanes: new LaneBook(), clients: new ClientBook() }), []);
  const [sentence, setSentence] = useState("");
  const [pointed, setPointed] = useState<Pointed | null>(null);
  const [asText, setAsText] = useState(false);

  useEffect(() => {
    if (!box.current || !base.current || !above.current) {
      return undefined;
    }
    const paint = new Painter(base.current, above.current);
    painter.current = paint;
    const stillness = window.matchMedia("(prefers-reduced-motion: reduce)");
    const show = (): void => {
      const width = Math.floor(box.current?.clientWidth ?? 0);
      const requests = store.requests.peek();
      const drawn = pictureOf(
        store.agents.peek(),
        store.deployments.peek(),
        requests,
        now(),
        books.lanes,
        books.clients,
      );
      picture.current = drawn;
      if (width > 0 && !document.hidden) {
        const named = (key: number): string => {
          const request = requests.get(String(key));
          return request ? clientOf(request) : "";
        };
        paint.show(drawn, width, named, !stillness.matches);
      }
    };
    const stop = effect(() => {
      store.agents.value;
      store.deployments.value;
      store.requests.value;
      show();
    });
    const repaint = effect(() => {
      theme.value;
      paint.repaint();
      queueMicrotask(show);
    });
    let width = 0;
    const sizes = new ResizeObserver(([entry]) => {
      if (entry && Math.floor(entry.contentRect.width) !== width) {
        width = Math.floor(entry.contentRect.width);
        show();
      }
    });
    sizes.observe(box.current);
    document.addEventListener("visibilitychange", show);
    let said = Number.NEGATIVE_INFINITY;
    const say = effect(() => {
      if (second.value - said >= SAID_EVERY_S && picture.current) {
        said = second.value;
        setSentence(sentenceOf(picture.current));
      }
    });
    return () => {
      stop();
      repaint();
      say();
      sizes.disconnect();
      document.removeEventListener("visibilitychange", show);
      paint.end();
      painter.current = null;
    };
  }, []);

  const point = (event: PointerEvent): void => {
    const layout = painter.current?.layout;
    const bounds = base.current?.getBoundingClientRect();
    if (!layout || !bounds) {
      return;
    }
    const x = event.clientX - bounds.left;
    const y = event.clientY - bounds.top;
    const found = tileAt(layout, x, y);
    painter.current?.mark(found && found.lane !== null ? cellBox(found.tile, found.lane, layout) : null);
    setPointed(found ? { left: x, top: y, agent: found.tile.key, lane: found.lane } : null);
  };
  const leave = (): void => {
    painter.current?.mark(null);
    setPointed(null);
  };
  const open = (): void => {
    const shown = picture.current?.agents.find((each) => each.agent.key === pointed?.agent);
    const request = pointed?.lane === null || pointed === null ? null : shown?.lanes[pointed.lane];
    if (request) {
      navigate(hrefOf("requests", [request.request]));
    } else if (shown) {
      document.getElementById(`agent-${shown.agent.key}`)?.scrollIntoView({ block: "center", behavior: "smooth" });
    }
  };

  return (
    <Card
      class="topology"
      title="Where every request is"
      actions={
        <>
          <ul class="legend" aria-hidden="true">
            {LEGEND.map(([name, color]) => (
              <li key={name} style={{ "--color": `var(${color})` }}>
                {name}
              </li>
            ))}
          </ul>
          <Button size="small" icon="list" aria-expanded={asText} onClick={() => setAsText(!asText)}>
            As text
          </Button>
        </>
      }
    >
      <div class="topology-box" ref={box}>
        <canvas ref={base} role="img" aria-label={sentence} />
        <canvas
          ref={above}
          class={pointed ? "above points" : "above"}
          aria-hidden="true"
          onPointerMove={point}
          onPointerDown={point}
          onPointerLeave={leave}
          onClick={open}
        />
        {pointed && picture.current ? <Hint pointed={pointed} picture={picture.current} width={box.current?.clientWidth ?? 0} /> : null}
      </div>
      {asText ? <AsText books={books} /> : null}
    </Card>
  );
}

/** What the pointer is on. */
function Hint({ pointed, picture, width }: { pointed: Pointed; picture: Picture; width: number }) {
  second.value;
  const shown = picture.agents.find((each) => each.agent.key === pointed.agent);
  if (!shown) {
    return null;
  }
  const lane = pointed.lane === null ? null : shown.lanes[pointed.lane];
  const request = lane ? store.requests.peek().get(String(lane.request)) : undefined;
  return (
    <div
      class="hint"
      style={{
        left: `${Math.max(4, Math.min(pointed.left + 14, width - 236))}px`,
        top: `${pointed.top + 18}px`,
      }}
    >
      <div class="row">
        <strong>{shown.agent.label}</strong>
        <Badge tone={shown.state.tone}>{shown.state.word}</Badge>
      </div>
      {pointed.lane === null ? (
        <p>
          {shown.agent.lanes.length} of {shown.agent.slots_total} slots busy
        </p>
      ) : lane ? (
        <>
          <p>
            Slot {pointed.lane}: {PHASES[lane.phase]} for {formatAge(now() - lane.since_ms)}
          </p>
          {request ? (
            <p>
              {clientOf(request)} · {request.tokens} tokens · <span class="mono">{request.id.slice(0, 22)}</span>
            </p>
          ) : null}
        </>
      ) : (
        <p>Slot {pointed.lane}: free</p>
      )}
    </div>
  );
}
