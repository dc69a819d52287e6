/** Light or dark: as the system says, or as the viewer chose. */

import { computed, effect, signal } from "@preact/signals";

export type ThemeChoice = "system" | "light" | "dark";

const STORED_AS = "paddler-trio-theme";
const CHOICES: readonly ThemeChoice[] = ["system", "light", "dark"];

const systemIsDark = signal(false);

export const themeChoice = signal<ThemeChoice>("system");
/** The theme in force; what draws on a canvas reads it and draws anew. */
export const theme = computed<"light" | "dark">(() =>
  themeChoice.value === "system" ? (systemIsDark.value ? "dark" : "light") : themeChoice.value,
);

/** Apply the stored choice, and follow the system and the viewer from now on. */
export function startTheme(): void {
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  systemIsDark.value = query.matches;
  query.addEventListener("change", (event) => {
    systemIsDark.value = event.matches;
  });
  const stored = storage()?.getItem(STORED_AS) as ThemeChoice | null;
  if (stored !== null && stored !== undefined && CHOICES.includes(stored)) {
    themeChoice.value = stored;
  }
  effect(() => {
    const choice = themeChoice.value;
    if (choice === "system") {
      delete document.documentElement.dataset["theme"];
    } else {
      document.documentElement.dataset["theme"] = choice;
    }
  });
}

export function chooseTheme(choice: ThemeChoice): void {
  themeChoice.value = choice;
  try {
    storage()?.setItem(STORED_AS, choice);
  } catch {
    // A full or forbidden storage: the choice lasts as long as the page.
  }
}

/** A colour token, such as `--accent`, as canvases want it: `rgb(…)`. */
export function themeColor(token: string): string {
  probe ??= document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  probe.style.color = `var(${token})`;
  return getComputedStyle(probe).color;
}

let probe: HTMLElement | undefined;

function storage(): Storage | null {
  try {
    return window.localStorage;
  } catch {
    return null; // forbidden by the browser's settings
  }
}
