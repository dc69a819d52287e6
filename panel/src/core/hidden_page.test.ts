import assert from "node:assert/strict";
import { test } from "node:test";
import { pauseWhenHidden } from "./hidden_page";

/** Longer than timers of no time at all. */
const later = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));

test("a page that stays hidden pauses its feed, and one that is shown again resumes it", async () => {
  const page = Object.assign(new EventTarget(), { hidden: false });
  const calls: string[] = [];
  const feed = { pause: () => calls.push("pause"), resume: () => calls.push("resume") };
  pauseWhenHidden(feed, page as unknown as Document, 0);
  const show = (isShown: boolean): void => {
    page.hidden = !isShown;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  show(false);
  show(true);
  await later();
  assert.deepEqual(calls, ["resume"], "it was shown again in time");
  show(false);
  await later();
  assert.deepEqual(calls, ["resume", "pause"]);
  show(true);
  assert.deepEqual(calls, ["resume", "pause", "resume"]);
});
