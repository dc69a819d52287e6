/** What keys do on the chart. Pure. */

export type Command =
  | "up"
  | "down"
  | "earlier"
  | "later"
  | "pan-left"
  | "pan-right"
  | "zoom-in"
  | "zoom-out"
  | "oldest"
  | "now"
  | "pause"
  | "open"
  | "leave";

interface Key {
  key: string;
  shiftKey: boolean;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
}

const KEYS: Record<string, Command> = {
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "earlier",
  ArrowRight: "later",
  "+": "zoom-in",
  "=": "zoom-in",
  "-": "zoom-out",
  _: "zoom-out",
  Home: "oldest",
  End: "now",
  " ": "pause",
  Enter: "open",
  Escape: "leave",
};

/** Null for what is the browser's. */
export function commandOf(event: Key): Command | null {
  if (event.ctrlKey || event.metaKey || event.altKey) {
    return null;
  }
  if (event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    return event.key === "ArrowLeft" ? "pan-left" : "pan-right";
  }
  return KEYS[event.key] ?? null;
}

export const KEY_HELP: readonly (readonly [keys: string, effect: string])[] = [
  ["↑ ↓", "the slot above or below"],
  ["← →", "the request before or after; on an agent: close or open it"],
  ["Enter", "open the request; on an agent: open or close it"],
  ["Shift + ← →", "move through time"],
  ["+ −", "zoom"],
  ["Home, End", "the oldest, now"],
  ["Space", "pause, or follow again"],
  ["Escape", "select nothing"],
];
