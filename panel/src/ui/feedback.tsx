import type { ComponentChildren } from "preact";
import { useId, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { ApiError } from "../core/api";
import { Button } from "./button";
import { Icon, type IconName } from "./icon";

export type Tone = "ok" | "warn" | "bad" | "info" | "quiet";

export function Badge({
  tone = "quiet",
  children,
  title,
  dot = false,
}: {
  tone?: Tone;
  children: ComponentChildren;
  title?: string | undefined;
  /** A point of the tone before a text without a coloured ground. */
  dot?: boolean;
}) {
  return (
    <span class={`badge ${tone}${dot ? " dot" : ""}`} title={title}>
      {children}
    </span>
  );
}

export interface Segment {
  /** Of the same unit as `max`. */
  value: number;
  label: string;
  /** A colour token such as `--c-kv`. */
  color: string;
  hatched?: boolean;
  /** The value as text, for the legend and screen readers. */
  text?: string;
}

/** A stacked bar; its text says the same. */
export function Meter({
  segments,
  max,
  label,
  legend = false,
  indeterminate = false,
}: {
  segments: readonly Segment[];
  /** The whole; without it the sum. */
  max?: number;
  label: string;
  legend?: boolean;
  indeterminate?: boolean;
}) {
  const sum = segments.reduce((total, each) => total + Math.max(0, each.value), 0);
  const whole = Math.max(max ?? sum, sum) || 1;
  const words = segments.map((each) => `${each.label} ${each.text ?? each.value}`).join(", ");
  return (
    <div class="meter">
      <div class={indeterminate ? "track indeterminate" : "track"} role="img" aria-label={`${label}: ${words}`}>
        {segments.map((each) => (
          <span
            key={each.label}
            class={each.hatched ? "hatched" : undefined}
            title={`${each.label}: ${each.text ?? each.value}`}
            style={{ width: `${(Math.max(0, each.value) / whole) * 100}%`, "--color": `var(${each.color})` }}
          />
        ))}
      </div>
      {legend ? (
        <ul class="legend" aria-hidden="true">
          {segments.map((each) => (
            <li key={each.label} style={{ "--color": `var(${each.color})` }} class={each.hatched ? "hatched" : undefined}>
              <span>{each.label}</span>
              <b>{each.text ?? each.value}</b>
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}

/** What stands where nothing is yet, and what to do about it. */
export function Empty({
  title,
  advice,
  icon,
  children,
}: {
  title: string;
  advice?: ComponentChildren;
  icon?: IconName;
  children?: ComponentChildren;
}) {
  return (
    <div class="empty">
      {icon ? (
        <span class="empty-icon">
          <Icon name={icon} size={24} />
        </span>
      ) : null}
      <h3>{title}</h3>
      {advice ? <p>{advice}</p> : null}
      {children ? <div class="actions">{children}</div> : null}
    </div>
  );
}

/** What failed, in words, with the field it is about. */
export function Problem({
  error,
  retry,
  title,
}: {
  error: unknown;
  retry?: () => void;
  title?: string;
}) {
  const field = error instanceof ApiError ? error.field : undefined;
  return (
    <div class="problem" role="alert">
      <Icon name="warning" />
      <div>
        {title ? <strong>{title}</strong> : null}
        <p>
          {field ? <code>{field}</code> : null} {textOf(error)}
        </p>
      </div>
      {retry ? (
        <Button size="small" icon="retry" onClick={retry}>
          Try again
        </Button>
      ) : null}
    </div>
  );
}

/** A remark on a page: a limit, a reason, what to do next. */
export function Note({ tone = "info", children }: { tone?: "info" | "warn" | "ok" | "bad"; children: ComponentChildren }) {
  return (
    <div class={`note ${tone}`}>
      <Icon name={tone === "warn" || tone === "bad" ? "warning" : tone === "ok" ? "check" : "info"} />
      <div>{children}</div>
    </div>
  );
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

interface Shown {
  id: number;
  tone: Tone;
  text: string;
  action?: { text: string; run: () => void } | undefined;
}

const MAX_TOASTS = 4;
const shown = signal<readonly Shown[]>([]);
let lastToast = 0;

/** Show a sentence at the edge of the window for some seconds; errors stay until they are closed. */
export function toast(tone: Tone, text: string, action?: Shown["action"]): void {
  lastToast += 1;
  const id = lastToast;
  shown.value = [...shown.value, { id, tone, text, action }].slice(-MAX_TOASTS);
  if (tone !== "bad") {
    setTimeout(() => dismiss(id), 6000);
  }
}

function dismiss(id: number): void {
  shown.value = shown.value.filter((each) => each.id !== id);
}

export function Toast({ tone, text, action, close }: Omit<Shown, "id"> & { close: () => void }) {
  return (
    <div class={`toast ${tone}`}>
      <Icon name={tone === "bad" || tone === "warn" ? "warning" : tone === "ok" ? "check" : "info"} />
      <span>{text}</span>
      {action ? (
        <Button
          size="small"
          onClick={() => {
            action.run();
            close();
          }}
        >
          {action.text}
        </Button>
      ) : null}
      <Button kind="quiet" size="small" icon="close" aria-label="Close" onClick={close} />
    </div>
  );
}

/** Where toasts appear; stands in the frame once. */
export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.value.map(({ id, ...each }) => (
        <Toast key={id} {...each} close={() => dismiss(id)} />
      ))}
    </div>
  );
}

/** Text to be copied: a line that can be selected, and a button. */
export function Copy({ text, label = "Copy", inline = false }: { text: string; label?: string; inline?: boolean }) {
  const [done, setDone] = useState(false);
  const line = useRef<HTMLElement>(null);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 2000);
    } catch {
      // Browsers keep the clipboard for secure origins: what is selected can be copied by hand.
      const range = document.createRange();
      if (line.current) {
        range.selectNodeContents(line.current);
        getSelection()?.removeAllRanges();
        getSelection()?.addRange(range);
      }
      toast("info", "The text is selected. Copy it with Ctrl+C or ⌘C.");
    }
  };
  return (
    <div class={inline ? "copy inline" : "copy"}>
      <code ref={line} tabIndex={inline ? undefined : 0}>
        {text}
      </code>
      <Button
        size="small"
        kind={inline ? "quiet" : "plain"}
        icon={done ? "check" : "copy"}
        aria-label={done ? "Copied" : label}
        onClick={copy}
      />
    </div>
  );
}

/** Words that explain what they stand on, by pointer, focus or touch. */
export function Tooltip({ text, children }: { text: ComponentChildren; children: ComponentChildren }) {
  const id = useId();
  const [place, setPlace] = useState<{ left: number; top: number; above: boolean } | null>(null);
  const anchor = useRef<HTMLSpanElement>(null);
  const open = (): void => {
    const box = anchor.current?.getBoundingClientRect();
    if (box) {
      const above = box.bottom + 120 > innerHeight;
      const left = Math.min(Math.max(box.left + box.width / 2, 150), innerWidth - 150);
      setPlace({ left, top: above ? box.top - 6 : box.bottom + 6, above });
    }
  };
  const close = (): void => setPlace(null);
  return (
    <span
      ref={anchor}
      class="tooltip-anchor"
      tabIndex={0}
      aria-describedby={place ? id : undefined}
      onMouseEnter={open}
      onMouseLeave={close}
      onFocus={open}
      onBlur={close}
      onKeyDown={(event) => event.key === "Escape" && close()}
    >
      {children}
      {place ? (
        <span
          role="tooltip"
          id={id}
          class={place.above ? "tooltip above" : "tooltip"}
          style={{ left: `${place.left}px`, top: `${place.top}px` }}
        >
          {text}
        </span>
      ) : null}
    </span>
  );
}
