import { useState } from "preact/hooks";
import { store, useTopics } from "../../core/store";
import { Button, Empty, Page } from "../../ui";
import { AddAgent } from "./add_agent";
import { AgentList } from "./agent_list";
import { BalancerFacts } from "./balancer_facts";
import { Deployments } from "./deployments";
import { Summary } from "./summary";
import { Topology } from "./topology";

export default function FleetPage() {
  useTopics("agents", "deployments", "requests", "rollouts");
  const [adds, setAdds] = useState(false);
  const isKnown = store.known.value.has("agents");
  return (
    <Page
      title="Fleet"
      actions={
        <Button kind="primary" icon="plus" onClick={() => setAdds(true)}>
          Add an agent
        </Button>
      }
    >
      {isKnown ? <Fleet add={() => setAdds(true)} /> : <div class="skeleton" role="status" aria-busy="true" aria-label="Waiting for the balancer" />}
      {adds ? <AddAgent close={() => setAdds(false)} /> : null}
    </Page>
  );
}

function Fleet({ add }: { add: () => void }) {
  return (
    <>
      <Summary />
      {store.agents.value.size === 0 ? (
        <>
          <Empty
            icon="fleet"
            title="No agent yet"
            advice="An agent runs on each machine with a model. It dials in to this balancer by itself, and shows up here at once. Requests wait in the queue until one serves."
          >
            <Button kind="primary" icon="plus" onClick={add}>
              Add an agent
            </Button>
          </Empty>
          <Deployments />
        </>
      ) : (
        <>
          <Topology />
          <Deployments />
          <AgentList />
        </>
      )}
      <BalancerFacts />
    </>
  );
}
