/** The form of one deployment. Leaving the page keeps what was typed; closing the window asks. */

import { useEffect, useState } from "preact/hooks";
import { hrefOf, navigate, route } from "../../core/router";
import { plural } from "../../core/format";
import { Button, Card, Confirm, Field, Input, Note, Page, Problem } from "../../ui";
import { FieldControl } from "./field_control";
import { GROUPS, type Group, TEMPLATE_FIELD } from "./fields";
import { FitCheck } from "./fit_check";
import {
  begin,
  change,
  changes,
  type Draft,
  draft,
  edit,
  fleetError,
  fleetNow,
  type FleetNow,
  isDirty,
  loadFleet,
  rename,
} from "./fleet_state";
import { costWords } from "./cost_words";
import { Review } from "./review";
import { proposalOf } from "./proposal";
import { SourceFields } from "./source_fields";
import { costOf } from "./diff";
import { TemplateDialog } from "./template_dialog";
import { nameProblem, type Problems, problemsOf, specOf } from "./values";

/** Sections that are open from the start. */
const OPEN = new Set(["loading", "sampling"]);

export function Editor({ name }: { name: string | null }) {
  const now = fleetNow.value;
  const open = draft.value;
  const isOther = open !== null && isDirty(open) && (name === null ? !open.isNew : open.isNew || open.name !== name);
  useEffect(() => {
    if (now && !isOther) {
      name === null ? begin(route.peek().query.get("name") ?? "") : edit(name);
    }
  }, [now?.revision.revision, name, isOther]);
  useEffect(() => {
    const warn = (event: BeforeUnloadEvent): void => {
      if (draft.peek() && isDirty(draft.peek() as Draft)) {
        event.preventDefault();
      }
    };
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, []);
  const title = name === null ? "New deployment" : `Edit ${name}`;
  if (!now) {
    return (
      <Page title={title}>
        {fleetError.value ? <Problem error={fleetError.value} retry={loadFleet} /> : <div class="skeleton" />}
      </Page>
    );
  }
  if (isOther && open) {
    return <OtherDraft open={open} title={title} />;
  }
  if (name !== null && !now.revision.state.deployments.some((each) => each.name === name)) {
    return (
      <Page title={title}>
        <Note tone="warn">
          There is no deployment {name} (any more). <a href={hrefOf("model")}>Show those that there are</a>
        </Note>
      </Page>
    );
  }
  if (!open || (name === null ? !open.isNew : open.name !== name || open.isNew)) {
    return (
      <Page title={title}>
        <div class="skeleton" />
      </Page>
    );
  }
  return <Form open={open} title={title} now={now} />;
}

function OtherDraft({ open, title }: { open: Draft; title: string }) {
  const href = open.isNew ? hrefOf("model", ["new"]) : hrefOf("model", ["edit", open.name]);
  return (
    <Page title={title}>
      <Note tone="warn">
        <p>
          Changes of <b>{open.name || "a new deployment"}</b> were not applied yet. Only one deployment is edited at a time.
        </p>
        <div class="row">
          <Button kind="primary" onClick={() => navigate(href)}>
            Go on with them
          </Button>
          <Button
            kind="danger"
            onClick={() => {
              draft.value = null;
            }}
          >
            Drop them
          </Button>
        </div>
      </Note>
    </Page>
  );
}

function Form({ open, title, now }: { open: Draft; title: string; now: FleetNow }) {
  const [asked, setAsked] = useState(0);
  const [reviewed, setReviewed] = useState<FleetNow | null>(null);
  const [isDropping, setDropping] = useState(false);
  const [isChecking, setChecking] = useState(false);
  const [wasTried, setTried] = useState(false);
  const taken = now.revision.state.deployments.map((each) => each.name);
  const problems = problemsOf(open.values);
  const badName = open.isNew ? nameProblem(open.name, taken) : null;
  const noModel = open.values["model"] === "none" && open.name !== "default";
  const wrong: Problems = noModel ? { ...problems, model: "Only default may be without a model: choose one, or remove it." } : problems;
  const count = changes(open).length;
  const isOvertaken = now.revision.revision !== open.from.revision;
  const drop = (): void => {
    draft.value = null;
    navigate(hrefOf("model"));
  };
  const review = async (): Promise<void> => {
    setTried(true);
    if (badName || Object.keys({ ...wrong, ...open.refused }).length > 0) {
      showFirstProblem();
      return;
    }
    setChecking(true);
    setReviewed(await loadFleet());
    setChecking(false);
  };
  useEffect(() => {
    if (Object.keys(open.refused).length > 0) {
      showFirstProblem();
    }
  }, [open.refused]);
  const actions = (
    <>
      <Button onClick={() => (isDirty(open) ? setDropping(true) : drop())}>Cancel</Button>
      <Button kind="primary" disabled={!isDirty(open)} busy={isChecking} onClick={review}>
        {count > 0 && !open.isNew ? `Review ${plural(count, "change")}` : "Review"}
      </Button>
    </>
  );
  const shown = wasTried || !open.isNew ? wrong : { ...wrong, model: open.values["model"] === "none" ? "" : (wrong["model"] ?? "") };
  return (
    <Page title={title} actions={actions}>
      {isOvertaken ? (
        <Note tone="warn">
          Revision {now.revision.revision} by {now.revision.author} is in force since you began. Review shows both versions.
        </Note>
      ) : null}
      {fleetError.value ? <Problem error={fleetError.value} retry={loadFleet} /> : null}
      <div class="editor">
        <div class="stack">
          <Card title="Model">
            <div class="fields">
              {open.isNew ? (
                <div class="control" data-field="name">
                  <Field
                    label="Name"
                    help="Requests name it as their model. a–z, 0–9, “.”, “_” and “-”."
                    error={open.refused["name"] ?? (open.name !== "" || wasTried ? badName : null)}
                  >
                    <Input value={open.name} placeholder="coder" onValue={rename} />
                  </Field>
                </div>
              ) : null}
              <SourceFields open={open} problems={shown} judge={() => setAsked(asked + 1)} />
            </div>
          </Card>
          <TemplateCard open={open} problems={wrong} />
          {GROUPS.map((group) => (
            <Section key={group.id} group={group} open={open} problems={wrong} />
          ))}
        </div>
        <aside class="stack" aria-label="What it comes to">
          <FitCheck open={open} problems={wrong} asked={asked} />
          <Cost open={open} problems={wrong} />
        </aside>
      </div>
      <div class="form-actions">{actions}</div>
      {reviewed ? (
        <Review
          proposal={proposalOf(open)}
          now={reviewed}
          close={(isStored) => {
            setReviewed(null);
            if (isStored) {
              drop();
            }
          }}
        />
      ) : null}
      {isDropping ? (
        <Confirm title="Drop the changes?" action="Drop them" confirm={drop} close={() => setDropping(false)}>
          <p>{plural(count, "change")} of {open.name || "this deployment"} will be lost.</p>
        </Confirm>
      ) : null}
    </Page>
  );
}

function Section({ group, open, problems }: { group: Group; open: Draft; problems: Problems }) {
  const changed = new Set(changes(open));
  const count = group.fields.filter((field) => changed.has(field.path)).length;
  const isWrong = group.fields.some((field) => field.path in problems || field.path in open.refused);
  const [isOpen, setOpen] = useState(OPEN.has(group.id) || count > 0);
  return (
    <details class="card section" open={isOpen || isWrong} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <h2>{group.title}</h2>
        <span class="muted truncate">{group.help}</span>
        {count > 0 ? <span class="count">{plural(count, "change")}</span> : null}
      </summary>
      <div class="fields">
        {group.fields.map((field) => (
          <FieldControl key={field.path} field={field} open={open} problems={problems} />
        ))}
      </div>
    </details>
  );
}

function TemplateCard({ open, problems }: { open: Draft; problems: Problems }) {
  const [isEditing, setEditing] = useState(false);
  const text = String(open.values["template"] ?? "");
  const isChanged = changes(open).includes("template");
  const error = open.refused["template"] ?? problems["template"];
  return (
    <Card
      title="Chat template"
      actions={
        <>
          {text === "" ? null : (
            <Button size="small" onClick={() => change({ template: "" })}>
              Use the model's own
            </Button>
          )}
          <Button size="small" icon="edit" onClick={() => setEditing(true)}>
            {text === "" ? "Write another" : "Edit"}
          </Button>
        </>
      }
    >
      <div class={isChanged ? "control changed" : "control"} data-field="template">
        {text === "" ? (
          <p class="muted">Conversations become prompts by the model's own template.</p>
        ) : (
          <pre class="template-peek">{text.slice(0, 600)}</pre>
        )}
        {error ? <p class="field-error">{error}</p> : null}
      </div>
      {isEditing ? (
        <TemplateDialog
          deployment={open.isNew ? "default" : open.name}
          source={text}
          take={(template) => change({ [TEMPLATE_FIELD.path]: template })}
          close={() => setEditing(false)}
        />
      ) : null}
    </Card>
  );
}

function Cost({ open, problems }: { open: Draft; problems: Problems }) {
  const changed = changes(open);
  const wrong = Object.keys({ ...problems, ...open.refused });
  const fine = Object.fromEntries(Object.entries(open.values).filter(([path]) => !(path in problems)));
  const cost = costOf(open.base, specOf(fine, open.base));
  return (
    <Card title="What it comes to">
      {wrong.length > 0 && isDirty(open) ? (
        <p class="field-error">
          {plural(wrong.length, "field")} cannot be stored as {wrong.length === 1 ? "it stands" : "they stand"}.
        </p>
      ) : open.isNew ? (
        <p>{costWords("added").means}</p>
      ) : changed.length === 0 ? (
        <p class="muted">Nothing is changed yet.</p>
      ) : (
        <p>
          <b>{costWords(cost).word}</b>: {costWords(cost).means}
        </p>
      )}
    </Card>
  );
}

/** After the fields are drawn anew. */
function showFirstProblem(): void {
  requestAnimationFrame(() => {
    const field = document.querySelector<HTMLElement>(".editor [aria-invalid=true], .editor .field-error");
    field?.closest("details")?.setAttribute("open", "");
    field?.scrollIntoView({ block: "center" });
    field?.focus();
  });
}
