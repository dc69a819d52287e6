import type { ComponentChildren } from "preact";
import { effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";

/** Shown before the window's title; 0 shows nothing. */
export const titleCount = signal(0);

/** A page: its title is the heading and the window's title. */
export function Page({
  title,
  actions,
  children,
  wide = false,
}: {
  title: string;
  actions?: ComponentChildren;
  children?: ComponentChildren;
  /** Takes the whole width of the window: timelines, big tables. */
  wide?: boolean;
}) {
  useEffect(
    () =>
      effect(() => {
        document.title = `${titleCount.value > 0 ? `(${titleCount.value}) ` : ""}${title} · paddler-trio`;
      }),
    [title],
  );
  return (
    <div class={wide ? "page wide" : "page"}>
      <div class="page-head">
        <h1 tabIndex={-1}>{title}</h1>
        {actions ? <div class="actions">{actions}</div> : null}
      </div>
      {children}
    </div>
  );
}

export function Card({
  title,
  actions,
  children,
  class: more,
  tone,
  label,
}: {
  title?: ComponentChildren;
  actions?: ComponentChildren;
  children?: ComponentChildren;
  class?: string;
  tone?: "warn" | "bad";
  /** The name for screen readers, if there is no title. */
  label?: string;
}) {
  return (
    <section class={["card", tone, more].filter(Boolean).join(" ")} aria-label={label}>
      {title || actions ? (
        <header class="card-head">
          {title ? <h2>{title}</h2> : <span />}
          {actions ? <div class="actions">{actions}</div> : null}
        </header>
      ) : null}
      {children}
    </section>
  );
}

/** A number with its name and its unit; it keeps its width while it changes. */
export function Figure({
  label,
  value,
  unit,
  tone,
  hint,
  wide = false,
}: {
  label: string;
  value: ComponentChildren;
  unit?: string | undefined;
  tone?: "ok" | "warn" | "bad" | undefined;
  hint?: string | undefined;
  wide?: boolean;
}) {
  return (
    <div class={["figure", tone, wide && "wide"].filter(Boolean).join(" ")} title={hint}>
      <dt>{label}</dt>
      <dd>
        <span class="value">{value}</span>
        {unit ? <span class="unit">{unit}</span> : null}
      </dd>
    </div>
  );
}

/** Figures in a row; they wrap. */
export function Figures({ children }: { children: ComponentChildren }) {
  return <dl class="figures">{children}</dl>;
}

/** Names and values below each other. */
export function Facts({ rows }: { rows: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
