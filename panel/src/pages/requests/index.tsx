import { route } from "../../core/router";
import { useTopics } from "../../core/store";
import { RequestPage } from "./detail";
import { RequestList } from "./list";

export default function RequestsPage() {
  useTopics("agents", "balancer", "deployments", "requests");
  const [name] = route.value.rest;
  return name === undefined ? <RequestList /> : <RequestPage key={name} name={name} />;
}
