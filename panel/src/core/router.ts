/** Routes behind the `#`, so that the page works below any path: `#/requests/17?client=app`. */

import { signal } from "@preact/signals";

export interface Route {
  /** The first part: the page. */
  page: string;
  /** What follows, decoded: `["17"]`. */
  rest: readonly string[];
  query: URLSearchParams;
}

export const FIRST_PAGE = "fleet";

/** The route of a `location.hash`; an empty one is the first page. */
export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const [page = "", ...rest] = path.split("/").filter(Boolean).map(decode);
  return { page: page || FIRST_PAGE, rest, query: new URLSearchParams(query) };
}

/** The `#…` of a route, to be put into an `href`. Empty values of the query are left out. */
export function hrefOf(
  page: string,
  rest: readonly (string | number)[] = [],
  query: Readonly<Record<string, string | number | null | undefined>> = {},
): string {
  const path = [page, ...rest].map((part) => encodeURIComponent(String(part))).join("/");
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") {
      pairs.set(name, String(value));
    }
  }
  const text = pairs.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export const route = signal<Route>(parseRoute(typeof location === "undefined" ? "" : location.hash));

/** Go to a route; `replace` leaves no entry in the history (filters, while they are typed). */
export function navigate(href: string, { replace = false } = {}): void {
  if (replace) {
    history.replaceState(null, "", href);
    route.value = parseRoute(href);
  } else {
    location.hash = href;
  }
}

if (typeof window !== "undefined") {
  window.addEventListener("hashchange", () => {
    route.value = parseRoute(location.hash);
  });
}

function split(text: string, at: string): [string, string] {
  const place = text.indexOf(at);
  return place < 0 ? [text, ""] : [text.slice(0, place), text.slice(place + 1)];
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray % that somebody typed
  }
}
