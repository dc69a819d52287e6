import assert from "node:assert/strict";
import { test } from "node:test";
import { type AgentShape, type Box, cellBox, layOut, nameBoxes, tileAt } from "./layout";

function fleet(agents: number, lanes: number): AgentShape[] {
  return Array.from({ length: agents }, (_, key) => ({ key, lanes, deployment: key % 3 ? "default" : "coder" }));
}

function isInside(box: Box, width: number, height: number): boolean {
  return box.x >= 0 && box.y >= 0 && box.x + box.width <= width + 0.01 && box.y + box.height <= height + 0.01;
}

function overlap(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

for (const width of [280, 330, 640, 1000, 1600, 3600]) {
  for (const [agents, lanes] of [[1, 1], [3, 4], [12, 256], [13, 4], [40, 8], [120, 16]] as const) {
    test(`${agents} agents of ${lanes} slots in ${width} pixels: nothing overlaps, nothing sticks out`, () => {
      const layout = layOut(width, fleet(agents, lanes), ["default", "coder"], 6);
      const boxes: Box[] = [...layout.clients, ...layout.queues, ...layout.tiles];
      assert.equal(layout.tiles.length, agents);
      for (const [place, box] of boxes.entries()) {
        assert.ok(isInside(box, width, layout.height), JSON.stringify(box));
        assert.ok(boxes.slice(place + 1).every((other) => !overlap(box, other)), JSON.stringify(box));
      }
      for (const tile of layout.tiles) {
        for (const lane of [0, lanes - 1]) {
          const cell = cellBox(tile, lane, layout);
          assert.ok(isInside({ ...cell, x: cell.x - tile.x, y: cell.y - tile.y }, tile.width, tile.height));
          const found = tileAt(layout, cell.x + cell.width / 2, cell.y + cell.height / 2);
          assert.deepEqual([found?.tile.key, found?.lane], [tile.key, lane]);
        }
      }
    });
  }
}

test("a large fleet has small cells and a height that fits a window", () => {
  const layout = layOut(1200, fleet(500, 32), ["default", "coder"], 8);
  assert.equal(layout.names, "none");
  assert.ok(layout.height < 800, String(layout.height));
});

test("names stand beside the cells of their agents, where dots end", () => {
  for (const [width, agents, lanes] of [[1600, 3, 4], [1000, 40, 8], [330, 3, 4]] as const) {
    const layout = layOut(width, fleet(agents, lanes), ["default", "coder"], 6);
    const boxes = nameBoxes(layout);
    assert.equal(boxes.length, layout.names === "none" ? 0 : agents);
    layout.tiles.forEach((tile, place) => {
      const box = boxes[place];
      for (let lane = 0; box && lane < tile.lanes; lane += 1) {
        assert.ok(box.width > 0 && box.height > 0 && !overlap(box, cellBox(tile, lane, layout)));
      }
    });
  }
});
