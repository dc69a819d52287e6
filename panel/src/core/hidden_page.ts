/** A page in the background costs the balancer nothing after a while. */

const PATIENCE_MS = 60_000;

interface Pausable {
  pause(): void;
  resume(): void;
}

/** Pause `feed` when the page has been hidden for a minute, and resume it when it is shown. */
export function pauseWhenHidden(feed: Pausable, page: Document = document, patience_ms = PATIENCE_MS): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  page.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (page.hidden) {
      timer = setTimeout(() => feed.pause(), patience_ms);
    } else {
      feed.resume();
    }
  });
}
