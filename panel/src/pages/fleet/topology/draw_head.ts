/** The left of the picture, or the top of a narrow one: clients, queues, and the lines to the agents. */

import { formatAge, formatCount } from "../../../core/format";
import type { Brush } from "./brush";
import type { Box, Layout } from "./layout";
import type { Point } from "./particles";
import type { Picture } from "./picture";

const DOT = 7;
const DOT_GAP = 3;

export function drawHead(brush: Brush, picture: Picture, layout: Layout): void {
  const { context, colors } = brush;
  const [first] = layout.groups;
  const top = (first?.y ?? layout.height) - 2;
  context.clearRect(0, 0, layout.width, top);
  if (!layout.isNarrow) {
    context.clearRect(0, 0, first ? first.x - 2 : layout.width, layout.height);
  }
  const [client] = layout.clients;
  const [queue] = layout.queues;
  if (client) {
    brush.write("Clients", client.x, client.y - 14, { color: colors.muted });
  }
  if (queue) {
    brush.write(layout.queues.length > 1 ? "Queues" : "Queue", queue.x, queue.y - 14, { color: colors.muted });
  }
  if (first) {
    brush.write("Agents and their slots", first.x, first.y - 16, { color: colors.muted });
  }
  if (!layout.isNarrow) {
    drawLines(brush, picture, layout);
  }
  picture.clients.forEach((each, place) => {
    const box = layout.clients[place];
    if (box) {
      drawClient(brush, box, each.name, each.count);
    }
  });
  for (const each of picture.queues) {
    const box = layout.queues.find((known) => known.deployment === each.deployment);
    if (box) {
      drawQueue(brush, box, each, picture.queues.length > 1);
    }
  }
}

function drawLines(brush: Brush, picture: Picture, layout: Layout): void {
  const { context, colors } = brush;
  const line = (from: Point, to: Point, isBusy: boolean): void => {
    const bend = (from.x + to.x) / 2;
    context.strokeStyle = isBusy ? colors.lineStrong : colors.line;
    context.lineWidth = isBusy ? 1.5 : 1;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.bezierCurveTo(bend, from.y, bend, to.y, to.x, to.y);
    context.stroke();
  };
  layout.clients.forEach((box, place) => {
    for (const queue of layout.queues) {
      if (picture.clients[place]?.uses.has(queue.deployment)) {
        line(
          { x: box.x + box.width, y: box.y + box.height / 2 },
          { x: queue.x, y: queue.y + queue.height / 2 },
          true,
        );
      }
    }
  });
  const shown = new Map(picture.agents.map((each) => [each.agent.key, each]));
  for (const queue of layout.queues) {
    const from = { x: queue.x + queue.width, y: queue.y + queue.height / 2 };
    const group = layout.groups.find((each) => each.deployment === queue.deployment);
    if (group === undefined) {
      continue;
    }
    if (layout.names === "before") {
      for (const tile of layout.tiles) {
        const agent = shown.get(tile.key)?.agent;
        if (agent?.deployment === queue.deployment) {
          line(from, { x: tile.x - 2, y: tile.y + tile.height / 2 }, agent.lanes.length > 0);
        }
      }
    } else {
      const x = group.x - 10;
      line(from, { x, y: group.y + group.height / 2 }, true);
      context.beginPath();
      context.moveTo(x + 4, group.y);
      context.lineTo(x, group.y + 4);
      context.lineTo(x, group.y + group.height - 4);
      context.lineTo(x + 4, group.y + group.height);
      context.stroke();
    }
  }
}

function drawClient(brush: Brush, box: Box, name: string, count: number): void {
  const { context, colors } = brush;
  const y = box.y + box.height / 2 + 0.5;
  context.globalAlpha = count > 0 ? 1 : 0.55;
  brush.box(box, colors.surface, colors.line, 14);
  const number = formatCount(count);
  brush.write(number, box.x + box.width - 12, y, { color: colors.muted, align: "right" });
  const room = box.width - 32 - context.measureText(number).width;
  brush.write(name, box.x + 12, y, { color: colors.text, room });
  context.globalAlpha = 1;
}

function drawQueue(brush: Brush, box: Box, queue: Picture["queues"][number], isNamed: boolean): void {
  const { context, colors } = brush;
  const right = box.x + box.width - 12;
  brush.box(box, colors.surface, queue.waiting > 0 ? colors.q : colors.line, 10);
  brush.write(String(queue.waiting), right, box.y + 16, { color: colors.text, weight: 550, align: "right" });
  const words = isNamed ? queue.deployment : queue.waiting === 0 ? "empty" : "waiting";
  brush.write(words, box.x + 12, box.y + 16, { color: colors.muted, room: box.width - 60 });
  const perLine = Math.floor((box.width - 24 + DOT_GAP) / (DOT + DOT_GAP));
  const dots = Math.min(queue.waiting, perLine * 2);
  context.fillStyle = colors.q;
  context.beginPath();
  for (let place = 0; place < dots; place += 1) {
    // The head of the queue is at the right, where the agents are.
    const x = right - DOT / 2 - (place % perLine) * (DOT + DOT_GAP);
    const y = box.y + 34 + Math.floor(place / perLine) * (DOT + DOT_GAP);
    context.moveTo(x + DOT / 2, y);
    context.arc(x, y, DOT / 2, 0, 2 * Math.PI);
  }
  context.fill();
  if (queue.oldest_wait_ms !== null && queue.waiting > 0 && dots <= perLine) {
    brush.write(`longest ${formatAge(queue.oldest_wait_ms)}`, box.x + 12, box.y + 50, { color: colors.muted, size: 11 });
  }
}
