import { session, signOut } from "../core/api";
import { formatAge } from "../core/format";
import { hrefOf } from "../core/router";
import { store } from "../core/store";
import { chooseTheme, type ThemeChoice, themeChoice } from "../core/theme";
import { second } from "../core/time";
import { Button, textOf, toast } from "../ui";
import type { IconName } from "../ui";

const NEXT: Record<ThemeChoice, ThemeChoice> = { system: "light", light: "dark", dark: "system" };
const THEME_ICONS: Record<ThemeChoice, IconName> = { system: "system", light: "sun", dark: "moon" };
const THEME_NAMES: Record<ThemeChoice, string> = {
  system: "as the system",
  light: "light",
  dark: "dark",
};

export function Header() {
  const who = session.value;
  const choice = themeChoice.value;
  return (
    <header class="header">
      <a class="brand" href={hrefOf("fleet")} aria-label="paddler-trio, to the fleet">
        <Mark />
        <span class="brand-name">
          paddler<b>trio</b>
        </span>
      </a>
      <ConnectionState />
      <span class="grow" />
      {store.balancer.value ? (
        <span class="version" title="The version of the balancer">
          {store.balancer.value.version}
        </span>
      ) : null}
      <Button
        kind="quiet"
        icon={THEME_ICONS[choice]}
        aria-label={`Theme: ${THEME_NAMES[choice]}. Change to ${THEME_NAMES[NEXT[choice]]}`}
        onClick={() => chooseTheme(NEXT[choice])}
      />
      {who?.required && who.signed_in ? (
        <Button
          kind="quiet"
          icon="signOut"
          aria-label={`Sign out${who.name ? ` ${who.name}` : ""}`}
          onClick={() => signOut().catch((error: unknown) => toast("bad", textOf(error)))}
        />
      ) : null}
    </header>
  );
}

/** Three paddle strokes. */
export function Mark() {
  return (
    <svg class="mark" width="24" height="24" viewBox="0 0 24 24" aria-hidden="true">
      <rect width="24" height="24" rx="6" />
      <path d="M6 8.2c2 0 2 1.6 4 1.6s2-1.6 4-1.6 2 1.6 4 1.6M6 12.2c2 0 2 1.6 4 1.6s2-1.6 4-1.6 2 1.6 4 1.6M6 16.2c2 0 2 1.6 4 1.6s2-1.6 4-1.6 2 1.6 4 1.6" />
    </svg>
  );
}

function ConnectionState() {
  const connection = store.connection.value;
  const words = { connecting: "connecting", live: "live", lost: "stream lost" }[connection.state];
  const isDraining = store.balancer.value?.draining ?? false;
  return (
    <span class={`connection ${connection.state}`} role="status">
      <span class="light" aria-hidden="true" />
      {isDraining && connection.state === "live" ? "draining" : words}
    </span>
  );
}

/** Stands above the page while the stream is lost; data stays, marked as old. */
export function StreamLost({ retry }: { retry: () => void }) {
  const connection = store.connection.value;
  if (connection.state !== "lost") {
    return null;
  }
  second.value; // counts down
  const now = Date.now();
  const left_s = connection.retryAt === null ? 0 : Math.max(0, Math.ceil((connection.retryAt - now) / 1000));
  return (
    <div class="stream-lost" role="alert">
      <p>
        <strong>The stream is lost.</strong>{" "}
        {/[.!?]$/.test(connection.reason) ? connection.reason : `${connection.reason}.`}
        {store.known.value.size > 0 ? ` What you see is ${formatAge(now - connection.since)} old.` : ""}
      </p>
      <span class="next-try">{left_s > 0 ? `Next try in ${left_s} s` : "Trying again…"}</span>
      <Button size="small" onClick={retry}>
        Try now
      </Button>
    </div>
  );
}
