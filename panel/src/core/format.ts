/** Numbers and times as text. A figure keeps its width: three digits that count, tabular numerals do the rest. */

const UNKNOWN = "–";

type Maybe = number | null | undefined;

function isKnown(value: Maybe): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three digits: 1.23, 12.3, 123. */
function three(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** `12.3 GiB`; bytes themselves have no fraction. */
export function formatBytes(bytes: Maybe): string {
  if (!isKnown(bytes)) {
    return UNKNOWN;
  }
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : three(value)} ${units[unit]}`;
}

/** `999`, `12.3 k`, `1.23 M`. */
export function formatCount(count: Maybe): string {
  if (!isKnown(count)) {
    return UNKNOWN;
  }
  const units = ["", " k", " M", " G", " T"];
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return unit === 0 ? String(Math.round(value)) : three(value) + units[unit];
}

/** `1,234,567`. */
export function formatInteger(count: Maybe): string {
  return isKnown(count) ? Math.round(count).toLocaleString("en") : UNKNOWN;
}

/** `12 ms`, `1.23 s`, `2 min 05 s`, `3 h 07 min`, `4 d 02 h`. */
export function formatDuration(ms: Maybe): string {
  if (!isKnown(ms)) {
    return UNKNOWN;
  }
  const size = Math.max(0, ms);
  if (size < 999.5) {
    return `${size < 10 && !Number.isInteger(size) ? size.toFixed(1) : Math.round(size)} ms`;
  }
  if (size < 59_950) {
    return `${(size / 1000).toFixed(size < 9_995 ? 2 : 1)} s`;
  }
  const seconds = Math.round(size / 1000);
  if (seconds < 3600) {
    return `${Math.floor(seconds / 60)} min ${pad(seconds % 60)} s`;
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 24 * 60) {
    return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  }
  const hours = Math.round(minutes / 60);
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
}

/** Ages that grow while they are looked at: whole seconds, `5 s`. */
export function formatAge(ms: Maybe): string {
  return isKnown(ms) && ms < 59_950 ? `${Math.max(0, Math.floor(ms / 1000))} s` : formatDuration(ms);
}

/** `123/s`, `1.23 k/s`; `unit` stands before the slash: `12.3 tok/s`. */
export function formatRate(per_s: Maybe, unit = ""): string {
  if (!isKnown(per_s)) {
    return UNKNOWN;
  }
  const number = per_s === 0 ? "0" : Math.abs(per_s) < 999.5 ? three(per_s) : formatCount(per_s);
  return `${number}${unit ? ` ${unit}` : ""}/s`;
}

/** 0..1 as `87 %`. */
export function formatPercent(ratio: Maybe): string {
  return isKnown(ratio) ? `${Math.round(ratio * 100)} %` : UNKNOWN;
}

/** `13:37:05` in the viewer's zone; `13:37:05.123` with milliseconds. */
export function formatTime(time: Date, withMilliseconds = false): string {
  if (Number.isNaN(time.getTime())) {
    return UNKNOWN;
  }
  const text = `${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
  return withMilliseconds ? `${text}.${String(time.getMilliseconds()).padStart(3, "0")}` : text;
}

/** `2026-03-04 13:37:05` in the viewer's zone. */
export function formatDate(time: Date): string {
  if (Number.isNaN(time.getTime())) {
    return UNKNOWN;
  }
  return `${time.getFullYear()}-${pad(time.getMonth() + 1)}-${pad(time.getDate())} ${formatTime(time)}`;
}

/** The order of names: `a2` before `a10`. One collator, because making one takes longer than a thousand comparisons. */
export const compareNames = new Intl.Collator("en", { numeric: true }).compare;

/** `1 agent`, `2 agents`. */
export function plural(count: number, noun: string, nouns = `${noun}s`): string {
  return `${formatInteger(count)} ${count === 1 ? noun : nouns}`;
}

function pad(value: number): string {
  return String(value).padStart(2, "0");
}

/** The name of a request's client, else what is known of where it came from: text of strangers. */
export function clientOf(request: { client: string; source?: string }): string {
  return request.client || request.source || "anonymous";
}

export function capitalised(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}
