/** Where everything of the picture stands, in CSS pixels. Pure. */

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface AgentShape {
  key: number;
  lanes: number;
  deployment: string;
}

export interface Tile extends Box {
  key: number;
  /** Of the first cell. */
  left: number;
  top: number;
  columns: number;
  lanes: number;
}

export interface Group extends Box {
  deployment: string;
}

export interface Layout {
  width: number;
  height: number;
  /** Below each other instead of side by side. */
  isNarrow: boolean;
  clients: readonly Box[];
  queues: readonly Group[];
  groups: readonly Group[];
  tiles: readonly Tile[];
  /** Height of a cell. */
  cell: number;
  cellWidth: number;
  gap: number;
  /** Rows have the agent's name before its cells, tiles above them; tiny ones have none. */
  names: "before" | "above" | "none";
}

export const NARROW = 640;
const MAX_ROWS = 12;
const MAX_HEIGHT = 440;
const ROW = 36;
const ROW_NAME = 108;
const ROW_RATE = 84;
/** Width of a cell in a row: with the name of its client. */
const MAX_LANE = 132;
const CLIENT = { width: 136, height: 28, gap: 8 };
const QUEUE = { width: 148, height: 64, gap: 16 };
const HEAD = 28;
const CELLS = [20, 18, 16, 14, 12, 10, 8, 7, 6, 5, 4, 3];

/** `queues` are the deployments in order; agents are drawn in groups in that order. */
export function layOut(
  width: number,
  agents: readonly AgentShape[],
  queues: readonly string[],
  clients: number,
): Layout {
  const isNarrow = width < NARROW;
  const area = isNarrow
    ? { x: 0, y: 0, width }
    : { x: CLIENT.width + QUEUE.width + 128, y: HEAD, width: width - CLIENT.width - QUEUE.width - 128 };
  const head = isNarrow ? headBelow(width, queues, clients) : null;
  const from = head ? head.height : area.y;
  const body = agentsIn({ ...area, y: from }, agents, queues);
  const left = head ?? headBeside(queues, clients, Math.max(body.bottom - HEAD, 0), body.groups);
  return {
    width,
    height: Math.max(body.bottom, left.height),
    isNarrow,
    clients: left.clients,
    queues: left.queues,
    groups: body.groups,
    tiles: body.tiles,
    cell: body.cell,
    cellWidth: body.cellWidth,
    gap: body.gap,
    names: body.names,
  };
}

interface Head {
  clients: Box[];
  queues: Group[];
  height: number;
}

/** Two columns at the left: clients in the middle of the height, queues beside the agents that they feed. */
function headBeside(queues: readonly string[], clients: number, height: number, groups: readonly Group[]): Head {
  const clientsHeight = clients * (CLIENT.height + CLIENT.gap) - CLIENT.gap;
  const queuesHeight = queues.length * (QUEUE.height + QUEUE.gap) - QUEUE.gap;
  const most = Math.max(clientsHeight, queuesHeight, height);
  const clientsTop = HEAD + Math.max(0, (most - clientsHeight) / 2);
  return {
    clients: Array.from({ length: clients }, (_, place) => ({
      x: 0,
      y: clientsTop + place * (CLIENT.height + CLIENT.gap),
      width: CLIENT.width,
      height: CLIENT.height,
    })),
    queues: queueTops(queues, groups, HEAD, HEAD + most).map((y, place) => ({
      deployment: queues[place] ?? "",
      x: CLIENT.width + 64,
      y,
      width: QUEUE.width,
      height: QUEUE.height,
    })),
    height: HEAD + Math.max(most, 0),
  };
}

/** As near to the middle of their groups as there is room between `top` and `bottom`. */
function queueTops(queues: readonly string[], groups: readonly Group[], top: number, bottom: number): number[] {
  const step = QUEUE.height + QUEUE.gap;
  const tops: number[] = [];
  queues.forEach((deployment, place) => {
    const group = groups.find((each) => each.deployment === deployment);
    const before = tops[place - 1];
    const earliest = before === undefined ? top : before + step;
    const latest = bottom - (queues.length - place) * step + QUEUE.gap;
    const wanted = group ? group.y + (group.height - QUEUE.height) / 2 : earliest;
    tops.push(Math.max(earliest, Math.min(wanted, latest)));
  });
  return tops;
}

/** Clients in two columns, queues below them over the whole width. */
function headBelow(width: number, queues: readonly string[], clients: number): Head {
  const half = (width - CLIENT.gap) / 2;
  const rows = Math.ceil(clients / 2);
  const queuesTop = HEAD + rows * (CLIENT.height + CLIENT.gap) + HEAD;
  return {
    clients: Array.from({ length: clients }, (_, place) => ({
      x: (place % 2) * (half + CLIENT.gap),
      y: HEAD + Math.floor(place / 2) * (CLIENT.height + CLIENT.gap),
      width: half,
      height: CLIENT.height,
    })),
    queues: queues.map((deployment, place) => ({
      deployment,
      x: 0,
      y: queuesTop + place * (QUEUE.height + CLIENT.gap),
      width,
      height: QUEUE.height,
    })),
    height: queuesTop + queues.length * (QUEUE.height + CLIENT.gap) + HEAD,
  };
}

interface Body {
  groups: Group[];
  tiles: Tile[];
  bottom: number;
  cell: number;
  cellWidth: number;
  gap: number;
  names: Layout["names"];
}

interface Area {
  x: number;
  y: number;
  width: number;
}

function agentsIn(area: Area, agents: readonly AgentShape[], queues: readonly string[]): Body {
  if (agents.length <= MAX_ROWS) {
    return rowsIn(area, agents, queues);
  }
  let body = tilesIn(area, agents, queues, 3);
  for (const cell of CELLS) {
    body = tilesIn(area, agents, queues, cell);
    if (body.bottom - area.y <= MAX_HEIGHT) {
      break;
    }
  }
  return body;
}

function byDeployment(agents: readonly AgentShape[], queues: readonly string[]): [string, AgentShape[]][] {
  const found = new Map<string, AgentShape[]>(queues.map((name) => [name, []]));
  for (const agent of agents) {
    const known = found.get(agent.deployment);
    if (known) {
      known.push(agent);
    } else {
      found.set(agent.deployment, [agent]);
    }
  }
  return [...found].filter(([, each]) => each.length > 0);
}

/** An agent a row: its name, its cells, its speed. */
function rowsIn(area: Area, agents: readonly AgentShape[], queues: readonly string[]): Body {
  const isTight = area.width < 480;
  const most = Math.max(1, ...agents.map((agent) => agent.lanes));
  const room = area.width - ROW_NAME - (isTight ? 0 : ROW_RATE) - 16;
  const cell = CELLS.find((size) => most * (size + 3) <= room) ?? 4;
  const gap = cell > 6 ? 3 : 1;
  const cellWidth = Math.min(MAX_LANE, Math.max(cell, Math.floor(room / most) - gap));
  const columns = Math.max(1, Math.floor((room + gap) / (cellWidth + gap)));
  const tiles: Tile[] = [];
  const groups: Group[] = [];
  let y = area.y;
  for (const [deployment, members] of byDeployment(agents, queues)) {
    const top = y;
    for (const agent of members) {
      const used = Math.min(columns, agent.lanes);
      const lines = Math.ceil(agent.lanes / Math.max(1, used)) || 1;
      const height = Math.max(ROW, lines * (cell + gap) - gap + 16);
      tiles.push({
        key: agent.key,
        x: area.x,
        y,
        width: area.width,
        height,
        left: area.x + ROW_NAME,
        top: y + (height - (lines * (cell + gap) - gap)) / 2,
        columns: Math.max(1, used),
        lanes: agent.lanes,
      });
      y += height + 4;
    }
    groups.push({ deployment, x: area.x, y: top, width: area.width, height: y - 4 - top });
    y += 12;
  }
  return { groups, tiles, bottom: Math.max(area.y, y - 16), cell, cellWidth, gap, names: "before" };
}

/** Agents beside each other, in lines. */
function tilesIn(area: Area, agents: readonly AgentShape[], queues: readonly string[], cell: number): Body {
  const gap = cell > 8 ? 2 : 1;
  const hasName = cell >= 8;
  const pad = cell > 6 ? 6 : cell > 3 ? 3 : 2;
  const between = cell > 6 ? 6 : 3;
  const nameHeight = hasName ? 16 : 0;
  const tiles: Tile[] = [];
  const groups: Group[] = [];
  let y = area.y;
  for (const [deployment, members] of byDeployment(agents, queues)) {
    const top = y;
    let x = area.x;
    let lineHeight = 0;
    for (const agent of members) {
      const columns = Math.max(1, Math.min(agent.lanes, agent.lanes > 64 ? 16 : 8));
      const lines = Math.max(1, Math.ceil(agent.lanes / columns));
      const inner = columns * (cell + gap) - gap;
      const width = Math.max(inner, hasName ? 64 : 0) + 2 * pad;
      const height = lines * (cell + gap) - gap + 2 * pad + nameHeight;
      if (x > area.x && x + width > area.x + area.width) {
        x = area.x;
        y += lineHeight + between;
        lineHeight = 0;
      }
      tiles.push({ key: agent.key, x, y, width, height, left: x + pad, top: y + pad + nameHeight, columns, lanes: agent.lanes });
      x += width + between;
      lineHeight = Math.max(lineHeight, height);
    }
    y += lineHeight;
    groups.push({ deployment, x: area.x, y: top, width: area.width, height: y - top });
    y += 14;
  }
  return { groups, tiles, bottom: Math.max(area.y, y - 14), cell, cellWidth: cell, gap, names: hasName ? "above" : "none" };
}

/** The place of a lane's cell. */
export function cellBox(tile: Tile, lane: number, layout: Pick<Layout, "cell" | "cellWidth" | "gap">): Box {
  return {
    x: tile.left + (lane % tile.columns) * (layout.cellWidth + layout.gap),
    y: tile.top + Math.floor(lane / tile.columns) * (layout.cell + layout.gap),
    width: layout.cellWidth,
    height: layout.cell,
  };
}

/** What is at a point: a tile, and the lane of it if there is a cell. */
export function tileAt(layout: Layout, x: number, y: number): { tile: Tile; lane: number | null } | null {
  const tile = layout.tiles.find(
    (each) => x >= each.x && x < each.x + each.width && y >= each.y && y < each.y + each.height,
  );
  if (tile === undefined) {
    return null;
  }
  const column = Math.floor((x - tile.left + layout.gap / 2) / (layout.cellWidth + layout.gap));
  const line = Math.floor((y - tile.top + layout.gap / 2) / (layout.cell + layout.gap));
  const lane = line * tile.columns + column;
  const isCell = column >= 0 && column < tile.columns && line >= 0 && lane < tile.lanes;
  return { tile, lane: isCell ? lane : null };
}

/** Where the agents' names stand: before their cells, above them, or nowhere in a large fleet. */
export function nameBoxes({ names, tiles }: Pick<Layout, "names" | "tiles">): Box[] {
  return names === "none"
    ? []
    : tiles.map(({ x, y, width, height, left, top }) =>
        names === "before" ? { x, y, width: left - x, height } : { x, y, width, height: top - y },
      );
}
