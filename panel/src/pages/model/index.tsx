/** Deployments: `#/model`, `#/model/edit/NAME`, `#/model/new`, `#/model/history`. */

import { useEffect } from "preact/hooks";
import { route } from "../../core/router";
import { store, useTopics } from "../../core/store";
import { Editor } from "./editor";
import { loadFleet } from "./fleet_state";
import { History } from "./history";
import { Overview } from "./overview";

export default function ModelPage() {
  useTopics("balancer", "agents", "deployments", "rollouts");
  const revision = store.balancer.value?.revision;
  useEffect(() => {
    void loadFleet();
  }, [revision]);
  const [view, name] = route.value.rest;
  switch (view) {
    case "edit":
      return <Editor name={name ?? "default"} />;
    case "new":
      return <Editor name={null} />;
    case "history":
      return <History />;
    default:
      return <Overview />;
  }
}
