import assert from "node:assert/strict";
import { test } from "node:test";
import { type TreeNode, difference, moveFor, pathsOf, rowsOf, totals } from "./tree_rows";

function node(name: string, children: TreeNode[] = [], waits_for = "sleep", restarts = 0): TreeNode {
  return { name, waits_for, restarts, last_crash: null, children };
}

const tree = node("main", [
  node("connections", [node("requests", [node("request Xy", [], "a slot")]), node("writer"), node("writer")]),
  node("fleet", [], "news", 2),
]);

test("rows are the open part of the tree, with depths and places", () => {
  const rows = rowsOf(tree, new Set(["main/connections/requests"]), "");
  assert.deepEqual(
    rows.map((row) => [row.path, row.depth, row.isOpen, `${row.position}/${row.setSize}`]),
    [
      ["main", 0, true, "1/1"],
      ["main/connections", 1, true, "1/2"],
      ["main/connections/requests", 2, false, "1/3"],
      ["main/connections/writer", 2, false, "2/3"],
      ["main/connections/writer·2", 2, false, "3/3"],
      ["main/fleet", 1, false, "2/2"],
    ],
  );
  assert.equal(rows[1]?.below, 4);
});

test("a search shows matches and what leads to them, also in what is closed", () => {
  const rows = rowsOf(tree, new Set(["main"]), " A SLOT ");
  assert.deepEqual(
    rows.map((row) => [row.node.name, row.isMatch]),
    [
      ["main", false],
      ["connections", false],
      ["requests", false],
      ["request Xy", true],
    ],
  );
  assert.deepEqual(rowsOf(tree, new Set(), "nothing of it"), []);
});

test("what a newer tree has and has not", () => {
  const later = node("main", [node("connections", [node("requests"), node("writer")]), node("fleet"), node("store")]);
  const { added, gone } = difference(tree, later);
  assert.deepEqual([...added], ["main/store"]);
  assert.deepEqual([...gone], ["main/connections/requests/request Xy", "main/connections/writer·2"]);
  assert.equal(difference(null, later).added.size, 0);
  assert.equal(pathsOf(tree).size, 7);
  assert.deepEqual(totals(tree), { tasks: 7, restarts: 2 });
});

test("keys move as in every tree", () => {
  const open = rowsOf(tree, new Set(), "");
  assert.deepEqual(moveFor("ArrowDown", open, "main"), { kind: "focus", path: "main/connections" });
  assert.deepEqual(moveFor("ArrowRight", open, "main"), { kind: "focus", path: "main/connections" });
  assert.deepEqual(moveFor("ArrowLeft", open, "main/connections"), { kind: "close", path: "main/connections" });
  assert.deepEqual(moveFor("ArrowLeft", open, "main/fleet"), { kind: "focus", path: "main" });
  assert.deepEqual(moveFor("End", open, "main"), { kind: "focus", path: "main/fleet" });
  assert.equal(moveFor("ArrowUp", open, "main"), null);
  const closed = rowsOf(tree, new Set(["main/connections"]), "");
  assert.deepEqual(moveFor("ArrowRight", closed, "main/connections"), { kind: "open", path: "main/connections" });
  assert.deepEqual(moveFor("Enter", closed, "main/connections"), { kind: "open", path: "main/connections" });
  assert.equal(moveFor("Enter", closed, "main/fleet"), null);
  assert.deepEqual(moveFor("ArrowDown", closed, "gone"), { kind: "focus", path: "main" });
});
