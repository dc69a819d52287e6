/** One agent of the picture: its name, its state, its slots. */

import { formatRate } from "../../../core/format";
import type { LanePhase } from "../../../types";
import type { Brush } from "./brush";
import { type Box, cellBox, type Layout, type Tile } from "./layout";
import type { AgentShown } from "./picture";

/** Cells from this width on have a name. */
const MIN_NAMED = 56;

/** All that a drawing shows beside the lanes: equal texts, equal drawings. */
export function lookOf({ agent, state }: AgentShown, layout: Layout): string {
  const rate = agent.rates && layout.names === "before" ? Math.round(agent.rates.generated_tokens_per_s) : "";
  return `${state.tone} ${state.word} ${agent.label} ${agent.slots_total > 0} ${rate}`;
}

/** `clientOf` finds the client of a request, "" if it is unknown. */
export function drawAgent(
  brush: Brush,
  shown: AgentShown,
  tile: Tile,
  layout: Layout,
  clientOf: (request: number) => string,
): void {
  const { context, colors } = brush;
  const { agent, state } = shown;
  context.clearRect(tile.x - 1, tile.y - 1, tile.width + 2, tile.height + 2);
  const isTroubled = state.tone === "bad" || state.tone === "warn";
  const edge = isTroubled ? colors[state.tone] : colors.line;
  if (layout.names === "none") {
    context.fillStyle = colors.surface;
    context.fillRect(tile.x, tile.y, tile.width, tile.height);
    if (isTroubled) {
      context.strokeStyle = edge;
      context.lineWidth = 1.5;
      context.strokeRect(tile.x, tile.y, tile.width, tile.height);
    }
  } else {
    brush.box(tile, colors.surface, edge, 8);
  }
  if (layout.names === "before") {
    drawRowText(brush, shown, tile, layout);
  } else if (layout.names === "above") {
    const color = isTroubled ? edge : colors.muted;
    brush.write(agent.label, tile.left, tile.y + 13, { color, size: 11, room: tile.width - 12 });
  }
  drawCells(brush, shown, tile, layout);
  if (layout.cellWidth >= MIN_NAMED) {
    drawNames(brush, shown, tile, layout, clientOf);
  }
}

function drawRowText(brush: Brush, { agent, state }: AgentShown, tile: Tile, layout: Layout): void {
  const { context, colors } = brush;
  const y = tile.y + tile.height / 2 + 0.5;
  context.fillStyle = colors[state.tone];
  context.beginPath();
  context.arc(tile.x + 14, y, 3.5, 0, 2 * Math.PI);
  context.fill();
  brush.write(agent.label, tile.x + 24, y, { color: colors.text, weight: 500, room: tile.left - tile.x - 34 });
  const end = tile.left + tile.columns * (layout.cellWidth + layout.gap);
  const room = tile.x + tile.width - end - 16;
  if (room > 48) {
    const isUsual = state.word === "serving";
    const color = isUsual || state.tone === "quiet" ? colors.muted : colors[state.tone];
    const words = isUsual && agent.rates ? formatRate(Math.round(agent.rates.generated_tokens_per_s), "tok") : state.word;
    brush.write(words, tile.x + tile.width - 12, y, { color, align: "right", room });
  }
}

/** One path for each colour: a large fleet has tens of thousands of cells. */
function drawCells(brush: Brush, { agent, lanes, count }: AgentShown, tile: Tile, layout: Layout): void {
  const { context, colors } = brush;
  const radius = layout.cell >= 8 ? 3 : layout.cell >= 5 ? 1 : 0;
  const byPhase = new Map<LanePhase | "idle", Box[]>();
  for (let lane = 0; lane < Math.max(count, lanes.length); lane += 1) {
    const phase = lanes[lane]?.phase ?? "idle";
    const boxes = byPhase.get(phase) ?? [];
    boxes.push(cellBox(tile, lane, layout));
    byPhase.set(phase, boxes);
  }
  for (const [phase, boxes] of byPhase) {
    context.beginPath();
    for (const box of boxes) {
      if (radius > 0) {
        context.roundRect(box.x, box.y, box.width, box.height, radius);
      } else {
        context.rect(box.x, box.y, box.width, box.height);
      }
    }
    if (phase === "idle" && agent.slots_total === 0 && layout.cell >= 6) {
      context.strokeStyle = colors.lineStrong;
      context.lineWidth = 1;
      context.stroke();
    } else {
      context.fillStyle = colors[phase];
      context.fill();
    }
  }
}

/** In wide cells, whose requests they are. */
function drawNames(
  brush: Brush,
  { lanes }: AgentShown,
  tile: Tile,
  layout: Layout,
  clientOf: (request: number) => string,
): void {
  lanes.forEach((lane, place) => {
    const name = lane ? clientOf(lane.request) : "";
    if (name) {
      const box = cellBox(tile, place, layout);
      const style = { color: brush.colors.onCell, size: 11, room: box.width - 12 };
      brush.write(name, box.x + 6, box.y + box.height / 2 + 0.5, style);
    }
  });
}
