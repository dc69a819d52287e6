import { useMemo, useState } from "preact/hooks";
import { addressOf } from "../../core/api";
import { clientOf } from "../../core/format";
import { store } from "../../core/store";
import type { RequestView } from "../../types";
import { Button, Checkbox, Dialog, Field, Icon, Input, Select } from "../../ui";
import { COLUMN_NAMES, FIXED } from "./columns";
import { ENDINGS, exportName, type Filter, isFiltered, listPath, NO_FILTER } from "./filter";
import { MOST } from "./use_requests";

/** What narrows the table down; the choices are what is there. */
export function Filters({
  filter,
  views,
  change,
}: {
  filter: Filter;
  views: readonly RequestView[];
  change: (filter: Filter) => void;
}) {
  const clients = useMemo(() => namesIn([...views, ...store.requests.peek().values()].map(clientOf), filter.client), [views, filter.client]);
  const deployments = namesIn([...store.deployments.value.keys()], filter.deployment);
  const agents = namesIn([...store.agents.value.values()].map((agent) => agent.label), filter.agent);
  const [isOpen, setOpen] = useState(isFiltered({ ...filter, text: "" }));
  const set = (part: Partial<Filter>): void => change({ ...filter, ...part });
  return (
    <form class={isOpen ? "request-filters open" : "request-filters"} role="search" aria-label="Filter the requests" onSubmit={(event) => event.preventDefault()}>
      <Field label="Text" class="request-text">
        <Input
          type="search"
          placeholder="Id, client, agent, route, error"
          value={filter.text}
          maxLength={200}
          onValue={(text) => set({ text })}
        />
      </Field>
      <Button
        class="request-more-filters"
        icon="filter"
        aria-label="More filters"
        aria-expanded={isOpen}
        onClick={() => setOpen(!isOpen)}
      />
      <Field label="Client" class="narrowed">
        <Select value={filter.client} options={choices("All clients", clients)} onValue={(client) => set({ client })} />
      </Field>
      <Field label="Deployment" class="narrowed">
        <Select
          value={filter.deployment}
          options={choices("All deployments", deployments)}
          onValue={(deployment) => set({ deployment })}
        />
      </Field>
      <Field label="Agent" class="narrowed">
        <Select value={filter.agent} options={choices("All agents", agents)} onValue={(agent) => set({ agent })} />
      </Field>
      {filter.state === "finished" ? (
        <Field label="Ending" class="narrowed">
          <Select
            value={filter.ending}
            options={choices("All endings", ENDINGS)}
            onValue={(ending) => set({ ending: ending as Filter["ending"] })}
          />
        </Field>
      ) : null}
      <Button
        class="narrowed"
        kind="quiet"
        icon="close"
        disabled={!isFiltered(filter)}
        onClick={() => change({ ...NO_FILTER, state: filter.state })}
      >
        Clear
      </Button>
    </form>
  );
}

function choices(all: string, names: readonly string[]): { value: string; label: string }[] {
  return [{ value: "", label: all }, ...names.map((name) => ({ value: name, label: name }))];
}

/** Sorted, without the empty one, with the chosen one even if it is gone. */
function namesIn(names: readonly string[], chosen: string): string[] {
  return [...new Set([...names, chosen])].filter(Boolean).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

/** Links to the balancer's own list, with the same filter but the text. */
export function ExportLinks({ filter }: { filter: Filter }) {
  return (
    <>
      {(["csv", "json"] as const).map((format) => (
        <a
          key={format}
          class="button plain"
          href={addressOf(listPath(filter, format === "csv" ? { format } : { format, limit: MOST }))}
          download={exportName(filter.state, format, new Date())}
          title={`${format === "csv" ? "These requests" : `The newest ${MOST} of these requests`} as ${format.toUpperCase()}${filter.text ? "; the text does not narrow them down" : ""}`}
        >
          <Icon name="download" />
          <span>{format.toUpperCase()}</span>
        </a>
      ))}
    </>
  );
}

export function ColumnChooser({ chosen, choose }: { chosen: readonly string[]; choose: (ids: readonly string[]) => void }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button icon="list" aria-haspopup="dialog" onClick={() => setOpen(true)}>
        Columns
      </Button>
      {isOpen ? (
        <Dialog
          title="Columns"
          size="small"
          close={() => setOpen(false)}
          actions={
            <Button kind="primary" onClick={() => setOpen(false)}>
              Done
            </Button>
          }
        >
          <div class="request-columns">
            {Object.entries(COLUMN_NAMES).map(([id, name]) => (
              <Checkbox
                key={id}
                label={name}
                checked={chosen.includes(id)}
                disabled={FIXED.includes(id)}
                onValue={(is) => choose(is ? [...chosen, id] : chosen.filter((each) => each !== id))}
              />
            ))}
          </div>
          <p class="muted">A narrow window shows fewer of them. The choice is kept in this browser.</p>
        </Dialog>
      ) : null}
    </>
  );
}
