import type { Agent } from "../../types";
import { Dialog, Note } from "../../ui";
import { issueText, nextAttempt } from "./agent_facts";

/** What keeps an agent from its desired state, and what to do about it. */
export function Issues({ agent, close }: { agent: Agent; close: () => void }) {
  return (
    <Dialog title={`Issues of ${agent.label}`} close={close}>
      {agent.detail ? <Note tone="warn">{agent.detail}</Note> : null}
      <p>{nextAttempt(agent)}</p>
      {agent.issues.length === 0 ? <p>There are none any more.</p> : null}
      <ul class="issues">
        {agent.issues.map((issue) => {
          const { title, subject, advice } = issueText(issue);
          return (
            <li key={`${title} ${subject}`}>
              <h3>{title}</h3>
              {subject ? <p class="mono subject">{subject}</p> : null}
              <p>{advice}</p>
            </li>
          );
        })}
      </ul>
    </Dialog>
  );
}
