import assert from "node:assert/strict";
import { test } from "node:test";
import { type StateSpan, withEvent } from "./agent_states";

function after(...events: [at_ms: number, event: "joined" | "left" | "phase", phase?: string][]): readonly StateSpan[] {
  return events.reduce<readonly StateSpan[]>(
    (spans, [at_ms, event, phase]) => withEvent(spans, { at_ms, event, phase: phase ?? null, detail: null }),
    [],
  );
}

test("a swap is as long as the agent does not serve", () => {
  const spans = after([10, "joined", "serving"], [20, "phase", "draining"], [30, "phase", "loading"], [90, "phase", "serving"]);
  assert.deepEqual(
    spans.map(({ state, start_ms, end_ms, text }) => [state, start_ms, end_ms, text]),
    [
      ["swap", 20, 30, "draining"],
      ["swap", 30, 90, "loading"],
    ],
  );
});

test("an agent is gone until another connection of it joins", () => {
  assert.deepEqual(after([10, "left"]).map((span) => [span.state, span.end_ms]), [["gone", null]]);
  assert.deepEqual(after([10, "left"], [50, "joined", "serving"]).map((span) => [span.state, span.end_ms]), [["gone", 50]]);
});

test("what is known already and what is older changes nothing", () => {
  const spans = after([10, "phase", "loading"], [20, "phase", "serving"]);
  assert.equal(withEvent(spans, { at_ms: 5, event: "left", phase: null, detail: null }), spans);
  const open = after([10, "phase", "loading"]);
  assert.equal(withEvent(open, { at_ms: 30, event: "phase", phase: "loading", detail: null }), open);
});
