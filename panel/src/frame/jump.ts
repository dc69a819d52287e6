/** Where the palette can go, and which of the places fit what was typed. Pure. */

import type { PageEntry } from "../pages/registry";
import type { Agent, Deployment } from "../types";
import { hrefOf } from "../core/router";

export interface Place {
  readonly title: string;
  /** What it is, or how it is reached by keys. */
  readonly hint: string;
  readonly href: string;
}

/** As many as fit a window; of more, typing chooses. */
const MOST = 12;

export function placesOf(
  pages: readonly PageEntry[],
  deployments: ReadonlyMap<string, Deployment>,
  agents: ReadonlyMap<string, Agent>,
): Place[] {
  const labels = [...new Set([...agents.values()].map((agent) => agent.label))].sort();
  return [
    ...pages.map((page) => ({ title: page.title, hint: `g ${page.key}`, href: hrefOf(page.id) })),
    { title: "New deployment", hint: "Model", href: hrefOf("model", ["new"]) },
    { title: "History of the fleet", hint: "Model", href: hrefOf("model", ["history"]) },
    ...[...deployments.keys()].sort().flatMap((name) => [
      { title: `Change ${name}`, hint: "deployment", href: hrefOf("model", ["edit", name]) },
      { title: `Requests of ${name}`, hint: "deployment", href: hrefOf("requests", [], { deployment: name }) },
    ]),
    ...labels.map((name) => ({ title: `Requests of ${name}`, hint: "agent", href: hrefOf("requests", [], { agent: name }) })),
  ];
}

/** Those that have every word that was typed, the ones that begin with it first; and the request of such an id. */
export function fitting(places: readonly Place[], typed: string): Place[] {
  const text = typed.trim();
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = places.filter((place) => {
    const all = `${place.title} ${place.hint}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
  const begins = (place: Place): number => Number(!place.title.toLowerCase().startsWith(words[0] ?? ""));
  const sorted = words.length === 0 ? found : [...found].sort((one, other) => begins(one) - begins(other));
  const isId = /^[^\s/]{1,200}$/.test(text);
  const request = isId ? [{ title: `Request ${text}`, hint: "id or number", href: hrefOf("requests", [text]) }] : [];
  return [...sorted.slice(0, MOST), ...request];
}
