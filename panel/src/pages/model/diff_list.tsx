/** Differences of states, deployment by deployment. */

import { Badge } from "../../ui";
import { costWords } from "./cost_words";
import type { DeploymentDiff, FieldChange } from "./diff";
import type { DeploymentChange } from "./spec";

/** Lines of a template that are drawn. */
const MAX_LINES = 400;

export function DiffList({
  diffs,
  costs = [],
  empty = "Nothing changes.",
}: {
  diffs: readonly DeploymentDiff[];
  /** What the balancer says that they cost. */
  costs?: readonly DeploymentChange[];
  empty?: string;
}) {
  if (diffs.length === 0) {
    return <p class="muted">{empty}</p>;
  }
  return (
    <div class="diffs">
      {diffs.map((diff) => (
        <section class="diff" key={diff.deployment} aria-label={`Changes of ${diff.deployment}`}>
          <h4>
            {diff.deployment}
            <Cost diff={diff} change={costs.find((each) => each.deployment === diff.deployment)?.change} />
          </h4>
          {diff.fields.length > 0 ? (
            <dl>
              {diff.fields.map((field) => (
                <Change key={field.path} field={field} />
              ))}
            </dl>
          ) : null}
        </section>
      ))}
    </div>
  );
}

function Cost({ diff, change }: { diff: DeploymentDiff; change: DeploymentChange["change"] | undefined }) {
  if (change === undefined) {
    return diff.kind === "changed" ? null : <Badge tone={diff.kind === "added" ? "info" : "bad"}>{diff.kind}</Badge>;
  }
  const { word, tone, means } = costWords(change);
  return (
    <>
      <Badge tone={tone}>{word}</Badge>
      <span class="means">{means}</span>
    </>
  );
}

function Change({ field }: { field: FieldChange }) {
  return (
    <div class="diff-row">
      <dt>{field.label}</dt>
      <dd>
        <del>{field.before}</del>
        <span class="arrow" aria-hidden="true">
          →
        </span>
        <ins>{field.after}</ins>
      </dd>
      {field.lines && field.lines.length > 0 ? <Lines field={field} lines={field.lines} /> : null}
    </div>
  );
}

function Lines({ field, lines }: { field: FieldChange; lines: NonNullable<FieldChange["lines"]> }) {
  const shown = lines.slice(0, MAX_LINES);
  return (
    <dd class="diff-lines">
      <div class="code-box" role="region" tabIndex={0} aria-label={`Lines of ${field.label}`}>
        {shown.map((line, place) => (
          <div key={place} class={line.kind}>
            <span class="number">{line.number}</span>
            <span class="sign" aria-label={line.kind === "gone" ? "removed" : line.kind === "new" ? "added" : undefined}>
              {line.kind === "gone" ? "−" : line.kind === "new" ? "+" : " "}
            </span>
            <code>{line.text}</code>
          </div>
        ))}
        {lines.length > MAX_LINES ? <p class="muted">… and {lines.length - MAX_LINES} more lines</p> : null}
      </div>
    </dd>
  );
}
