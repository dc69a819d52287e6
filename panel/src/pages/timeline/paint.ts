/** The chart's colours and patterns in the theme in force. */

import { themeColor } from "../../core/theme";
import { type BlockKind, LEGEND, LOOKS, type Pattern } from "./kinds";

/** Pixels; blocks move by whole tiles' phases, so a pattern moves with its block. */
export const TILE = 8;

export interface Paint {
  fills: Record<BlockKind, string | CanvasPattern>;
  colors: Record<BlockKind, string>;
  surface: string;
  sunken: string;
  line: string;
  text: string;
  muted: string;
  faint: string;
  accent: string;
  idle: string;
  /** Text on a block. */
  onBlock: string;
  font: string;
}

/** `ratio`: device pixels per CSS pixel. */
export function paintFor(ratio: number): Paint {
  const surface = themeColor("--surface");
  const fills = {} as Paint["fills"];
  const colors = {} as Paint["colors"];
  for (const kind of LEGEND) {
    colors[kind] = themeColor(LOOKS[kind].color);
    fills[kind] = filled(LOOKS[kind].pattern, colors[kind], surface, ratio);
  }
  return {
    fills,
    colors,
    surface,
    sunken: themeColor("--sunken"),
    line: themeColor("--line"),
    text: themeColor("--text"),
    muted: themeColor("--muted"),
    faint: themeColor("--faint"),
    accent: themeColor("--accent"),
    idle: themeColor("--c-idle"),
    onBlock: themeColor("--c-ink"),
    font: getComputedStyle(document.body).fontFamily,
  };
}

function filled(pattern: Pattern, color: string, surface: string, ratio: number): string | CanvasPattern {
  if (pattern === "solid") {
    return color;
  }
  const size = Math.round(TILE * ratio);
  const tile = document.createElement("canvas");
  tile.width = size;
  tile.height = size;
  const pen = tile.getContext("2d");
  if (pen === null) {
    return color;
  }
  pen.fillStyle = color;
  pen.fillRect(0, 0, size, size);
  pen.scale(size / TILE, size / TILE);
  pen.strokeStyle = surface;
  pen.fillStyle = surface;
  PENS[pattern](pen);
  return pen.createPattern(tile, "repeat") ?? color;
}

type Pen = CanvasRenderingContext2D;

const PENS: Record<Exclude<Pattern, "solid">, (pen: Pen) => void> = {
  dots(pen) {
    pen.globalAlpha = 0.75;
    for (const [x, y] of [[2, 2], [6, 6]] as const) {
      pen.beginPath();
      pen.arc(x, y, 1.1, 0, 7);
      pen.fill();
    }
  },
  upright(pen) {
    pen.globalAlpha = 0.65;
    pen.fillRect(1, 0, 1.5, TILE);
    pen.fillRect(5, 0, 1.5, TILE);
  },
  rungs(pen) {
    pen.globalAlpha = 0.6;
    pen.fillRect(0, 1, TILE, 1.5);
    pen.fillRect(0, 5, TILE, 1.5);
  },
  hatch(pen) {
    pen.globalAlpha = 0.7;
    diagonals(pen, 1.8, 1);
  },
  "thick-hatch"(pen) {
    pen.globalAlpha = 0.55;
    diagonals(pen, 3, -1);
  },
  cross(pen) {
    pen.globalAlpha = 0.6;
    diagonals(pen, 1.2, 1);
    diagonals(pen, 1.2, -1);
  },
  checks(pen) {
    pen.globalAlpha = 0.5;
    pen.fillRect(0, 0, 4, 4);
    pen.fillRect(4, 4, 4, 4);
  },
};

/** Lines from corner to corner, and through the two other corners, so that tiles join. */
function diagonals(pen: Pen, width: number, slope: 1 | -1): void {
  pen.lineWidth = width;
  pen.beginPath();
  for (const shift of [-TILE, 0, TILE]) {
    pen.moveTo(shift - 1, slope > 0 ? TILE + 1 : -1);
    pen.lineTo(shift + TILE + 1, slope > 0 ? -1 : TILE + 1);
  }
  pen.stroke();
}
