/** From agents and slots to rows below each other. Pure. */

export const HEAD_HEIGHT = 28;
export const LANE_HEIGHT = 18;
export const GAP = 8;
/** With more lanes than these, agents are shown as one row each until one is opened. */
export const MAX_OPEN_LANES = 160;
/** The most lanes that one agent, or the queue, shows without being asked. */
export const MAX_OPEN_GROUP = 40;

export interface RowSource {
  id: string;
  lanes: number;
}

export interface Row<Source extends RowSource = RowSource> {
  source: Source;
  /** Null: the row of the whole agent (or queue). */
  lane: number | null;
  /** The agent's lanes are not shown. */
  collapsed: boolean;
  top: number;
  height: number;
}

export interface Rows<Source extends RowSource = RowSource> {
  rows: readonly Row<Source>[];
  height: number;
}

/** `opened` has what the viewer chose; the others are open unless all lanes together are too many. */
export function rowsOf<Source extends RowSource>(
  sources: readonly Source[],
  opened: ReadonlyMap<string, boolean>,
): Rows<Source> {
  const isOpen = sources.reduce((sum, source) => sum + source.lanes, 0) <= MAX_OPEN_LANES;
  const rows: Row<Source>[] = [];
  let top = 0;
  const add = (source: Source, lane: number | null, collapsed: boolean, height: number): void => {
    rows.push({ source, lane, collapsed, top, height });
    top += height;
  };
  for (const source of sources) {
    const collapsed = !(opened.get(source.id) ?? (isOpen && source.lanes <= MAX_OPEN_GROUP));
    add(source, null, collapsed, HEAD_HEIGHT);
    if (!collapsed) {
      for (let lane = 0; lane < source.lanes; lane += 1) {
        add(source, lane, false, LANE_HEIGHT);
      }
      top += GAP;
    }
  }
  return { rows, height: top };
}

/** The place of the row at a height, -1 for none: above the first, below the last, in a gap. */
export function rowAt(rows: readonly Row[], y: number): number {
  const place = lastFrom(rows, y);
  const row = rows[place];
  return row !== undefined && y < row.top + row.height ? place : -1;
}

/** The places of the rows in `[top, bottom)`: from the first one, up to the second. */
export function rowsBetween(rows: readonly Row[], top: number, bottom: number): [number, number] {
  return [Math.max(0, lastFrom(rows, top)), lastFrom(rows, bottom) + 1];
}

/** The place of the last row that begins at `y` or above, -1 for none. */
function lastFrom(rows: readonly Row[], y: number): number {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((rows[middle] as Row).top <= y) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}
