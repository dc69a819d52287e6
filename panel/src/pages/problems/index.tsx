/** Everything that is wrong, over all pages: what it is, what follows for clients, and what to do. */

import { plural } from "../../core/format";
import { hrefOf } from "../../core/router";
import { store, useTopics } from "../../core/store";
import type { ProblemEntry } from "../../types";
import { Badge, Card, Empty, Page } from "../../ui";
import { sentence } from "../requests/waterfall_rows";
import { PAGES } from "../registry";

export default function ProblemsPage() {
  useTopics("problems");
  const problems = [...store.problems.value.values()];
  const isKnown = store.known.value.has("problems");
  return (
    <Page title="Problems">
      {!isKnown ? (
        <div class="skeleton" role="status" aria-busy="true" aria-label="Waiting for the balancer" />
      ) : problems.length === 0 ? (
        <Card label="No problem">
          <Empty icon="check" title="No problem" advice="Every deployment is answered as it is desired, and every agent that was here is here." />
        </Card>
      ) : (
        <>
          <p class="muted">{plural(problems.length, "problem")}, the worst first.</p>
          <ul class="problem-list">
            {problems.map((problem) => (
              <li key={problem.id}>
                <Entry problem={problem} />
              </li>
            ))}
          </ul>
        </>
      )}
    </Page>
  );
}

function Entry({ problem }: { problem: ProblemEntry }) {
  const page = PAGES.find((each) => each.id === problem.page);
  return (
    <article class={`card problem-entry ${problem.severity}`} aria-label={problem.subject}>
      <header class="card-head">
        <h2>{problem.subject}</h2>
        <Badge tone={problem.severity}>{problem.severity === "bad" ? "hurts clients" : "look at it"}</Badge>
      </header>
      <p class="what">{sentence(problem.sentence)}</p>
      <dl class="facts">
        {problem.follows ? (
          <div>
            <dt>For clients</dt>
            <dd>{sentence(problem.follows)}</dd>
          </div>
        ) : null}
        {problem.todo ? (
          <div>
            <dt>What to do</dt>
            <dd>{sentence(problem.todo)}</dd>
          </div>
        ) : null}
      </dl>
      {page ? (
        <p>
          <a href={hrefOf(page.id)}>To the page {page.title}</a>
        </p>
      ) : null}
    </article>
  );
}
