/** Line icons on a grid of 16, drawn for this panel. They are decoration: names stand beside them or on their button. */

const PATHS = {
  fleet: "M8 2.5v3M8 5.5H3.5v3M8 5.5h4.5v3M8 5.5v3M2 8.5h3v3H2zM6.5 8.5h3v3h-3zM11 8.5h3v3h-3z",
  machines: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  timeline: "M2 3.5h6M5 8h8M3 12.5h5M11 12.5h3M11 3.5h3",
  requests: "M2.5 3.5h11M2.5 8h11M2.5 12.5h7",
  model: "M8 1.8 13.6 5v6L8 14.2 2.4 11V5zM2.6 5.1 8 8.2l5.4-3.1M8 8.2v5.8",
  prompt: "M2 3h12v8H7.5L4.5 13.8V11H2z",
  metrics: "M2 13.5h12M3 10.5l3-4 2.5 2.5L13 3.5",
  tree: "M3 2.5v9.5h4M3 6h4M8 4.5h5.5v3H8zM8 10.5h5.5v3H8z",
  keys: "M10.2 9.2a3.6 3.6 0 1 0-3.4-3.4L2 10.6V14h3.2v-1.8H7v-1.8h1.8z",
  logs: "M3.5 2h6L13 5.5V14H3.5zM9.2 2.2v3.6h3.6M5.8 8.5h4.6M5.8 11h4.6",
  more: "M3 8h.01M8 8h.01M13 8h.01",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6zM8 1v1.8M8 13.2V15M1 8h1.8M13.2 8H15M3 3l1.3 1.3M11.7 11.7 13 13M13 3l-1.3 1.3M4.3 11.7 3 13",
  moon: "M13.2 9.8A5.8 5.8 0 0 1 6.2 2.8a5.8 5.8 0 1 0 7 7z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3",
  signOut: "M6.5 2.5H3v11h3.5M10.5 5l3 3-3 3M13.2 8H6.5",
  close: "m4 4 8 8M12 4l-8 8",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.3V2.5h-8v8h2.8",
  check: "m3 8.5 3.2 3.2L13 5",
  plus: "M8 3v10M3 8h10",
  warning: "M8 2 14.5 13.5h-13zM8 6.3v3.4M8 11.6h.01",
  info: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 7.4v3.4M8 5.2h.01",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6L12.6 8z",
  undo: "M6 3 2.8 6.2 6 9.4M3 6.2h6.2a3.6 3.6 0 0 1 0 7.2H6.5",
  retry: "M13 4v3.2H9.8M3 12V8.8h3.2M12.7 6.9A5 5 0 0 0 4 5M3.3 9.1A5 5 0 0 0 12 11",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.3 10.3 14 14",
  chevron: "m6 3.5 4.5 4.5L6 12.5",
  down: "m3.5 6 4.5 4.5L12.5 6",
  up: "m3.5 10 4.5-4.5 4.5 4.5",
  download: "M8 2v8M4.8 7 8 10.2 11.2 7M2.5 13.5h11",
  upload: "M8 10.5V2.5M4.8 5.5 8 2.3l3.2 3.2M2.5 13.5h11",
  send: "M2.5 8 13.5 2.8 10.2 13.4 7.6 9.2zM7.6 9.2l5.9-6.4",
  stop: "M4 4h8v8H4z",
  trash: "M2.5 4.2h11M6 4V2.5h4V4M4 4.2l.7 9.3h6.6l.7-9.3M6.7 6.8v4M9.3 6.8v4",
  edit: "M3 13l.6-2.9 7-7 2.3 2.3-7 7zM9.2 4.5l2.3 2.3",
  filter: "M2.5 3h11L9.3 8.2v4.6l-2.6-1.4V8.2z",
  list: "M2.5 4h11M2.5 8h11M2.5 12h11",
  cards: "M2.5 2.5h4.6v4.6H2.5zM8.9 2.5h4.6v4.6H8.9zM2.5 8.9h4.6v4.6H2.5zM8.9 8.9h4.6v4.6H8.9z",
  open: "M6 3H3v10h10v-3M9 3h4v4M13 3 7.5 8.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
