import { useState } from "preact/hooks";
import { store, useTopics } from "../../core/store";
import { Button, Empty, Note, Page } from "../../ui";
import { sentence } from "../requests/waterfall_rows";
import { AddAgent } from "./add_agent";
import { AgentList } from "./agent_list";
import { BalancerFacts } from "./balancer_facts";
import { Deployments } from "./deployments";
import { GoneAgents } from "./gone_agents";
import { Summary } from "./summary";
import { Topology } from "./topology";

export default function FleetPage() {
  useTopics("agents", "deployments", "requests", "rollouts", "problems", "gone");
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

/** Machines that dial in and are refused: they are not seen otherwise. */
function RefusedAgents() {
  const refused = [...store.problems.value.values()].filter((each) => each.id.startsWith("refused:"));
  return (
    <>
      {refused.map((each) => (
        <Note key={each.id} tone="warn">
          <b>{each.subject}</b>: {sentence(each.sentence)} {sentence(each.todo)}
        </Note>
      ))}
    </>
  );
}

function Fleet({ add }: { add: () => void }) {
  return (
    <>
      <Summary />
      {store.agents.value.size === 0 ? (
        <>
          <RefusedAgents />
          <GoneAgents />
          <Empty
            icon="fleet"
            title={store.gone.value.size > 0 ? "No agent is here" : "No agent yet"}
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
