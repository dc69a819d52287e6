import { useLayoutEffect, useRef } from "preact/hooks";
import { formatTime } from "../../core/format";
import { wallTime } from "../../core/time";
import type { ChartState } from "./chart_state";
import { LOOKS } from "./kinds";
import { factsOf, nameOf, placeName, stageAt } from "./words";

const GAP = 14;

/** What is under the pointer, in words. */
export function Tip({ state }: { state: ChartState }) {
  const box = useRef<HTMLDivElement>(null);
  const hovered = state.hovered.value;
  const group = hovered?.row.source;
  const span = hovered && group?.states.find((each) => each.start_ms <= hovered.at_ms && hovered.at_ms < (each.end_ms ?? state.now_ms));
  useLayoutEffect(() => {
    const element = box.current;
    if (element !== null && hovered !== null) {
      const { offsetWidth: width, offsetHeight: height } = element;
      const right = hovered.clientX + GAP + width > innerWidth - 8;
      const below = hovered.clientY + GAP + height < innerHeight - 8;
      element.style.left = `${Math.max(8, right ? hovered.clientX - GAP - width : hovered.clientX + GAP)}px`;
      element.style.top = `${Math.max(8, below ? hovered.clientY + GAP : hovered.clientY - GAP - height)}px`;
    }
  });
  if (hovered === null || group === undefined || (hovered.track === null && !span)) {
    return null;
  }
  const { track } = hovered;
  const stage = track === null ? undefined : stageAt(track, hovered.at_ms);
  return (
    <div class="timeline-tip" ref={box} aria-hidden="true">
      {track !== null && stage !== undefined ? (
        <>
          <strong>{nameOf(track)}</strong>
          <p>
            {LOOKS[stage.kind].words} · {placeName(group, hovered.row.lane)} · since {formatTime(wallTime(track.start_ms), true)}
          </p>
          <dl>
            {factsOf(track, state.now_ms).map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        </>
      ) : span ? (
        <>
          <strong>{group.label}</strong>
          <p>
            {LOOKS[span.state].words}
            {span.text && span.state === "swap" ? `: ${span.text}` : ""} since {formatTime(wallTime(span.start_ms))}
          </p>
        </>
      ) : null}
    </div>
  );
}
