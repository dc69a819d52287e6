/** All pages. Each is a file that is fetched when the page is opened first, with the styles of `PAGE/PAGE.css`. */

import type { ComponentType } from "preact";
import type { Topic } from "../types";
import type { IconName } from "../ui";

export interface PageEntry {
  id: string;
  /** `g` and this letter go there. */
  key: string;
  title: string;
  icon: IconName;
  load: () => Promise<{ default: ComponentType }>;
  /** Asked for while the page's file is fetched, so both come at once; the page itself says them with `useTopics`. */
  topics?: readonly Topic[];
}

export const PAGES: readonly PageEntry[] = [
  {
    id: "fleet",
    key: "f",
    title: "Fleet",
    icon: "fleet",
    load: () => import("./fleet"),
    topics: ["agents", "deployments", "requests", "rollouts", "problems", "gone"],
  },
  { id: "problems", key: "p", title: "Problems", icon: "warning", load: () => import("./problems"), topics: ["problems"] },
  { id: "machines", key: "h", title: "Machines", icon: "machines", load: () => import("./machines"), topics: ["agents"] },
  { id: "timeline", key: "t", title: "Timeline", icon: "timeline", load: () => import("./timeline") },
  { id: "requests", key: "r", title: "Requests", icon: "requests", load: () => import("./requests") },
  { id: "model", key: "m", title: "Model", icon: "model", load: () => import("./model") },
  { id: "prompt", key: "a", title: "Prompt", icon: "prompt", load: () => import("./prompt") },
  { id: "metrics", key: "n", title: "Metrics", icon: "metrics", load: () => import("./metrics") },
  { id: "usage", key: "u", title: "Usage", icon: "list", load: () => import("./usage") },
  { id: "tree", key: "e", title: "Tree", icon: "tree", load: () => import("./tree") },
  { id: "keys", key: "k", title: "Keys", icon: "keys", load: () => import("./keys") },
  { id: "logs", key: "l", title: "Logs", icon: "logs", load: () => import("./logs") },
];
