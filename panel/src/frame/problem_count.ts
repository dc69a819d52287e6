/** How many problems there are, in the window's title and its icon, and what is new as a notice. */

import { effect } from "@preact/signals";
import { store } from "../core/store";
import type { ProblemEntry } from "../types";
import { toast, titleCount } from "../ui";

/** Those that somebody should look at now. */
export function countOf(problems: ReadonlyMap<string, ProblemEntry>): number {
  return problems.size;
}

/** Keep title, icon and notices up to date; the function that ends it. */
export function showProblems(): () => void {
  let before: ReadonlySet<string> | null = null;
  const stop = effect(() => {
    const problems = store.problems.value;
    titleCount.value = countOf(problems);
    drawIcon(problems);
    if (!store.known.value.has("problems")) {
      before = null;
      return;
    }
    for (const problem of before === null ? [] : problems.values()) {
      if (!before?.has(problem.id) && problem.severity === "bad") {
        toast("bad", `${problem.subject}: ${problem.sentence}.`);
      }
    }
    before = new Set(problems.keys());
  });
  return () => {
    stop();
    titleCount.value = 0;
    drawIcon(new Map());
  };
}

let plain: string | null = null;
let drawn = "";

/** The icon with a dot in the colour of the worst. */
function drawIcon(problems: ReadonlyMap<string, ProblemEntry>): void {
  const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
  if (link === null) {
    return;
  }
  plain ??= link.href;
  const isBad = [...problems.values()].some((each) => each.severity === "bad");
  const color = problems.size === 0 ? "" : isBad ? "#e5484d" : "#e2a336";
  if (color === drawn) {
    return;
  }
  drawn = color;
  if (color === "") {
    link.href = plain;
    return;
  }
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 32;
  const brush = canvas.getContext("2d");
  const image = new Image();
  image.onload = () => {
    if (brush === null || drawn !== color) {
      return;
    }
    brush.drawImage(image, 0, 0, 32, 32);
    brush.fillStyle = color;
    brush.beginPath();
    brush.arc(23, 9, 9, 0, 2 * Math.PI);
    brush.fill();
    link.href = canvas.toDataURL("image/png");
  };
  image.src = plain;
}
