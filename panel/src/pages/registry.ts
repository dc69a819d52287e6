/** All pages. Each is a file that is fetched when the page is opened first, with the styles of `PAGE/PAGE.css`. */

import type { ComponentType } from "preact";
import type { Topic } from "../types";
import type { IconName } from "../ui";

export interface PageEntry {
  id: string;
  title: string;
  icon: IconName;
  load: () => Promise<{ default: ComponentType }>;
  /** Asked for while the page's file is fetched, so both come at once; the page itself says them with `useTopics`. */
  topics?: readonly Topic[];
}

export const PAGES: readonly PageEntry[] = [
  {
    id: "fleet",
    title: "Fleet",
    icon: "fleet",
    load: () => import("./fleet"),
    topics: ["agents", "deployments", "requests", "rollouts", "problems", "gone"],
  },
  { id: "problems", title: "Problems", icon: "warning", load: () => import("./problems"), topics: ["problems"] },
  { id: "timeline", title: "Timeline", icon: "timeline", load: () => import("./timeline") },
  { id: "requests", title: "Requests", icon: "requests", load: () => import("./requests") },
  { id: "model", title: "Model", icon: "model", load: () => import("./model") },
  { id: "prompt", title: "Prompt", icon: "prompt", load: () => import("./prompt") },
  { id: "metrics", title: "Metrics", icon: "metrics", load: () => import("./metrics") },
  { id: "usage", title: "Usage", icon: "list", load: () => import("./usage") },
  { id: "tree", title: "Tree", icon: "tree", load: () => import("./tree") },
  { id: "keys", title: "Keys", icon: "keys", load: () => import("./keys") },
  { id: "logs", title: "Logs", icon: "logs", load: () => import("./logs") },
];
