import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import { Icon, type IconName } from "./icon";

type Native = Omit<ButtonHTMLAttributes<HTMLButtonElement>, "icon" | "size">;

export interface ButtonProps extends Native {
  kind?: "primary" | "plain" | "danger" | "quiet";
  /** What it began is under way: it shows that, and cannot be pressed. */
  busy?: boolean | undefined;
  icon?: IconName | undefined;
  size?: "small" | "normal";
  children?: ComponentChildren;
}

/** A button; one that has only an icon needs an `aria-label`. */
export function Button({
  kind = "plain",
  busy = false,
  icon,
  size = "normal",
  children,
  class: more,
  disabled,
  ...rest
}: ButtonProps) {
  const bare = children === undefined || children === null;
  const classes = ["button", kind, size === "small" && "small", bare && "bare", busy && "busy", more];
  return (
    <button
      type="button"
      {...rest}
      class={classes.filter(Boolean).join(" ")}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      title={rest.title ?? (bare ? rest["aria-label"] : undefined)}
    >
      {busy ? <span class="spinner" aria-hidden="true" /> : icon ? <Icon name={icon} /> : null}
      {bare ? null : <span>{children}</span>}
    </button>
  );
}
