/** A canvas with the colours and the font of the page. */

import { themeColor } from "../../../core/theme";
import type { Box } from "./layout";

const TOKENS = {
  surface: "--surface",
  sunken: "--sunken",
  line: "--line",
  lineStrong: "--line-strong",
  text: "--text",
  muted: "--muted",
  accent: "--accent",
  q: "--c-queue",
  p: "--c-prefill",
  d: "--c-decode",
  s: "--c-stop",
  idle: "--c-idle",
  onCell: "--on-cell",
  ok: "--ok",
  warn: "--warn",
  bad: "--bad",
  info: "--info",
  quiet: "--c-stop",
} as const;

export type Colors = Record<keyof typeof TOKENS, string>;

export class Brush {
  readonly context: CanvasRenderingContext2D;
  colors: Colors;
  #font: string;

  constructor(canvas: HTMLCanvasElement) {
    const context = canvas.getContext("2d");
    if (!context) {
      throw new Error("This browser draws on no canvas.");
    }
    this.context = context;
    this.colors = readColors();
    this.#font = readFont();
  }

  /** The theme has changed. */
  renew(): void {
    this.colors = readColors();
    this.#font = readFont();
  }

  /** Empty, of this size in CSS pixels. */
  resize(width: number, height: number): void {
    const { canvas } = this.context;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  }

  /** A text in the middle of its line; cut if there is not enough room. */
  write(
    text: string,
    x: number,
    y: number,
    style: { color: string; size?: number; weight?: number; align?: CanvasTextAlign; room?: number },
  ): void {
    const { context } = this;
    context.font = `${style.weight ?? 400} ${style.size ?? 12}px ${this.#font}`;
    context.fillStyle = style.color;
    context.textAlign = style.align ?? "left";
    context.textBaseline = "middle";
    context.fillText(style.room === undefined ? text : this.#cut(text, style.room), x, y);
  }

  box(box: Box, fill: string, stroke: string, radius: number): void {
    const { context } = this;
    context.beginPath();
    context.roundRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1, radius);
    context.fillStyle = fill;
    context.fill();
    context.strokeStyle = stroke;
    context.lineWidth = 1;
    context.stroke();
  }

  #cut(text: string, room: number): string {
    if (this.context.measureText(text).width <= room) {
      return text;
    }
    let cut = text;
    while (cut.length > 1 && this.context.measureText(`${cut}…`).width > room) {
      cut = cut.slice(0, -1);
    }
    return `${cut}…`;
  }
}

function readColors(): Colors {
  return Object.fromEntries(Object.entries(TOKENS).map(([name, token]) => [name, themeColor(token)])) as Colors;
}

function readFont(): string {
  return getComputedStyle(document.body).fontFamily;
}
