/** A nursery tree as rows: what is shown, what matches a search, what is new. Pure. */

/** One task, as `/api/v2/tree` has it. */
export interface TreeNode {
  readonly name: string;
  readonly waits_for: string;
  readonly restarts: number;
  readonly last_crash: string | null;
  readonly children: readonly TreeNode[];
}

export interface TreeRow {
  /** The names from the root down; equal names beside each other are numbered, so it is unique. */
  readonly path: string;
  readonly parent: string | null;
  readonly depth: number;
  readonly node: TreeNode;
  readonly hasChildren: boolean;
  readonly isOpen: boolean;
  /** It matches the search, and is not only shown as the parent of one that does. */
  readonly isMatch: boolean;
  /** Its place among those that share its parent, from 1, and how many they are. */
  readonly position: number;
  readonly setSize: number;
  /** All tasks below it. */
  readonly below: number;
}

/** More rows than this are not drawn; the search narrows them. */
export const MAX_SHOWN_ROWS = 2_000;

/**
 * The rows to draw, first to last.
 *
 * @param closed - paths whose children are hidden; a search shows those that match anyway.
 */
export function rowsOf(root: TreeNode, closed: ReadonlySet<string>, search: string): TreeRow[] {
  const wanted = search.trim().toLowerCase();
  const rows: TreeRow[] = [];
  const sizes = new Map<TreeNode, number>();
  const matches = new Map<TreeNode, boolean>();
  measure(root, wanted, sizes, matches);

  const visit = (node: TreeNode, path: string, parent: string | null, depth: number, position: number, setSize: number) => {
    const shown = node.children.filter((child) => wanted === "" || matches.get(child) === true);
    const isOpen = wanted !== "" ? shown.length > 0 : !closed.has(path) && shown.length > 0;
    rows.push({
      path,
      parent,
      depth,
      node,
      hasChildren: shown.length > 0,
      isOpen,
      isMatch: wanted !== "" && isMatch(node, wanted),
      position,
      setSize,
      below: (sizes.get(node) ?? 1) - 1,
    });
    if (!isOpen) {
      return;
    }
    for (const [index, [child, name]] of named(shown).entries()) {
      visit(child, `${path}/${name}`, path, depth + 1, index + 1, shown.length);
    }
  };
  if (wanted === "" || matches.get(root) === true) {
    visit(root, root.name, null, 0, 1, 1);
  }
  return rows;
}

/** Every path of a tree, also of what is hidden. */
export function pathsOf(root: TreeNode): Set<string> {
  const paths = new Set<string>();
  const visit = (node: TreeNode, path: string) => {
    paths.add(path);
    for (const [child, name] of named(node.children)) {
      visit(child, `${path}/${name}`);
    }
  };
  visit(root, root.name);
  return paths;
}

/** What a newer tree has that the one before had not, and the other way round. */
export function difference(
  before: TreeNode | null,
  after: TreeNode,
): { added: Set<string>; gone: Set<string> } {
  const [old, fresh] = [before === null ? null : pathsOf(before), pathsOf(after)];
  if (old === null) {
    return { added: new Set(), gone: new Set() };
  }
  return {
    added: new Set([...fresh].filter((path) => !old.has(path))),
    gone: new Set([...old].filter((path) => !fresh.has(path))),
  };
}

/** How many tasks a tree has, and how often children were restarted. */
export function totals(root: TreeNode): { tasks: number; restarts: number } {
  return root.children.reduce(
    (all, child) => {
      const own = totals(child);
      return { tasks: all.tasks + own.tasks, restarts: all.restarts + own.restarts };
    },
    { tasks: 1, restarts: root.restarts },
  );
}

export type TreeMove =
  | { readonly kind: "focus"; readonly path: string }
  | { readonly kind: "open" | "close"; readonly path: string }
  | null;

/** What a key does at the row `path`, as in every tree: arrows, Home, End. */
export function moveFor(key: string, rows: readonly TreeRow[], path: string): TreeMove {
  const at = rows.findIndex((row) => row.path === path);
  const row = rows[at];
  if (row === undefined) {
    return rows[0] === undefined ? null : { kind: "focus", path: rows[0].path };
  }
  const focus = (target: TreeRow | undefined): TreeMove =>
    target === undefined ? null : { kind: "focus", path: target.path };
  switch (key) {
    case "ArrowDown":
      return focus(rows[at + 1]);
    case "ArrowUp":
      return focus(rows[at - 1]);
    case "Home":
      return focus(rows[0]);
    case "End":
      return focus(rows.at(-1));
    case "ArrowRight":
      if (!row.hasChildren) {
        return null;
      }
      return row.isOpen ? focus(rows[at + 1]) : { kind: "open", path };
    case "ArrowLeft":
      if (row.isOpen) {
        return { kind: "close", path };
      }
      return row.parent === null ? null : { kind: "focus", path: row.parent };
    case "Enter":
    case " ":
      if (!row.hasChildren) {
        return null;
      }
      return { kind: row.isOpen ? "close" : "open", path };
    default:
      return null;
  }
}

// ------------------------------------------------------------------------------------- inside

function isMatch(node: TreeNode, wanted: string): boolean {
  return (
    node.name.toLowerCase().includes(wanted) ||
    node.waits_for.toLowerCase().includes(wanted) ||
    (node.last_crash ?? "").toLowerCase().includes(wanted)
  );
}

/** Fills the number of tasks, itself among them, and whether it or one below it matches. */
function measure(
  node: TreeNode,
  wanted: string,
  sizes: Map<TreeNode, number>,
  matches: Map<TreeNode, boolean>,
): void {
  let size = 1;
  let matched = wanted !== "" && isMatch(node, wanted);
  for (const child of node.children) {
    measure(child, wanted, sizes, matches);
    size += sizes.get(child) ?? 1;
    matched ||= matches.get(child) === true;
  }
  sizes.set(node, size);
  matches.set(node, matched);
}

/** Children with names that are unique among them: `writer`, `writer·2`. */
function named(children: readonly TreeNode[]): [TreeNode, string][] {
  const seen = new Map<string, number>();
  return children.map((child) => {
    const count = (seen.get(child.name) ?? 0) + 1;
    seen.set(child.name, count);
    return [child, count === 1 ? child.name : `${child.name}·${count}`];
  });
}
