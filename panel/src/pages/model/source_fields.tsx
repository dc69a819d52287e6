/** Where the model comes from: a source, the files of a repository, and what belongs to the model. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, api } from "../../core/api";
import { formatBytes } from "../../core/format";
import type { HubModels } from "../../types";
import { Badge, Button, Input, Note, Problem, Select, Table } from "../../ui";
import { FieldControl } from "./field_control";
import { MODEL_FIELDS } from "./fields";
import { change, type Draft } from "./fleet_state";
import { Fits, useQuantizationFits } from "./quantization_fits";
import { chosenQuantization, hubSource, projectionFor, type Quantization } from "./hub";
import { parseSource, type Reference, type Repository } from "./source";
import type { Problems } from "./values";

const TYPING_MS = 600;
const [MODEL, PROJECTION] = MODEL_FIELDS;

export function SourceFields({
  open,
  problems,
  judge,
}: {
  open: Draft;
  problems: Problems;
  /** Ask the agents whether the model that is chosen now fits. */
  judge: () => void;
}) {
  const text = String(open.values["model"] ?? "");
  const reference = referenceOf(text);
  const repository = reference && repositoryOf(reference);
  if (!MODEL || !PROJECTION) {
    return null;
  }
  const isUnchosen = reference !== null && "repository" in reference;
  return (
    <>
      <FieldControl field={MODEL} open={open} problems={isUnchosen ? {} : problems}>
        <Input
          class="mono"
          value={open.isNew && text === "none" ? "" : text}
          placeholder="org/repo, /models/model.gguf or https://…"
          onValue={(value) => change({ model: value })}
        />
      </FieldControl>
      {repository ? (
        <Files key={repository.repo_id} wanted={repository} open={open} judge={judge} />
      ) : null}
      <FieldControl field={PROJECTION} open={open} problems={problems}>
        <Input class="mono" value={String(open.values["projection"] ?? "")} onValue={(value) => change({ projection: value })} />
      </FieldControl>
    </>
  );
}

function Files({ wanted, open, judge }: { wanted: Repository; open: Draft; judge: () => void }) {
  const [models, setModels] = useState<HubModels | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (models && [models.commit, models.revision].includes(wanted.revision)) {
      return undefined; // the file that was chosen is of the list that is shown
    }
    const stop = new AbortController();
    setError(null);
    const timer = setTimeout(async () => {
      const query = new URLSearchParams({ repo: wanted.repo_id, revision: wanted.revision });
      try {
        setModels(await api.get<HubModels>(`api/v2/hub/models?${query}`, stop.signal));
      } catch (problem) {
        if (!stop.signal.aborted) {
          setError(problem);
        }
      }
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [wanted.repo_id, wanted.revision, tries]);
  if (error) {
    const isOver = error instanceof ApiError && [400, 404].includes(error.status);
    return isOver ? <Problem error={error} /> : <Problem error={error} retry={() => setTries(tries + 1)} />;
  }
  if (models === null) {
    return (
      <p class="muted looking" role="status">
        <span class="spinner" aria-hidden="true" /> Looking at {wanted.repo_id} …
      </p>
    );
  }
  return <Choice models={models} wanted={wanted} open={open} judge={judge} />;
}

function Choice({ models, wanted, open, judge }: { models: HubModels; wanted: Repository; open: Draft; judge: () => void }) {
  const model = String(open.values["model"] ?? "");
  const take = (each: Quantization): void => {
    const first = each.files[0];
    if (first) {
      const projection = projectionFor(first.path, models.projections);
      change({
        model: hubSource(models, first.path),
        projection: projection ? hubSource(models, projection.path) : "none",
      });
      judge();
    }
  };
  const fits = useQuantizationFits(open, models);
  const isTaken = (each: Quantization): boolean => each.files.some((file) => model === hubSource(models, file.path));
  if (models.quantizations.length === 0) {
    return <Note tone="warn">{models.repo} has no GGUF model that llama.cpp could load. Look for one whose name ends with -GGUF.</Note>;
  }
  const named = chosenQuantization(models, wanted);
  return (
    <div class="files">
      {wanted.quantisation && !named ? (
        <Note tone="warn">
          {models.repo} has no {wanted.quantisation}. Choose one of these.
        </Note>
      ) : null}
      <Table<Quantization>
        label={`Quantisations of ${models.repo}`}
        rows={models.quantizations}
        rowKey={(each) => each.name}
        maxHeight="320px"
        columns={[
          {
            id: "name",
            title: "Quantisation",
            value: (each) => each.name,
            render: (each) => (
              <span class="quantization">
                <span class="row">
                  <b>{each.name}</b>
                  {each.is_default ? <Badge>usual choice</Badge> : null}
                </span>
                <span class="only-narrow muted">{formatBytes(each.size_bytes)}</span>
                <span class="mono muted hide-narrow">
                  {each.files[0]?.path}
                  {each.files.length > 1 ? ` and ${each.files.length - 1} more` : ""}
                </span>
              </span>
            ),
          },
          {
            id: "size",
            title: "Size",
            align: "right",
            hide: "narrow",
            value: (each) => each.size_bytes,
            render: (each) => <span class="nowrap">{formatBytes(each.size_bytes)}</span>,
          },
          ...(fits.verdicts.size > 0 || fits.busy
            ? [{ id: "fits", title: "Fits", render: (each: Quantization) => <Fits verdicts={fits.verdicts.get(each.name)} /> }]
            : []),
          {
            id: "take",
            title: <span class="unseen">Choose</span>,
            align: "right",
            render: (each) => (
              <Button
                size="small"
                kind={each === named && !models.quantizations.some(isTaken) ? "primary" : "plain"}
                icon={isTaken(each) ? "check" : undefined}
                aria-pressed={isTaken(each)}
                aria-label={`Choose ${each.name}`}
                onClick={() => take(each)}
              >
                {isTaken(each) ? "Chosen" : "Choose"}
              </Button>
            ),
          },
        ]}
      />
      {models.projections.length > 0 ? (
        <label class="projections">
          <span>Projection of this repository</span>
          <Select
            value={String(open.values["projection"] ?? "none")}
            options={[
              { value: "none", label: "none: no images" },
              ...models.projections.map((file) => ({
                value: hubSource(models, file.path),
                label: `${file.path} (${formatBytes(file.size_bytes)})`,
              })),
            ]}
            onValue={(projection) => change({ projection })}
          />
        </label>
      ) : null}
      <div class="files-line">
        <p class="field-help">
          At commit <code>{models.commit.slice(0, 12)}</code>: agents fetch that, whatever the repository becomes.
        </p>
        <Button size="small" busy={fits.busy} disabled={fits.hosts === 0} onClick={fits.ask}>
          Which of them fit?
        </Button>
      </div>
    </div>
  );
}

function referenceOf(text: string): Reference | null {
  try {
    return parseSource(text);
  } catch {
    return null; // what is wrong with it stands at the field
  }
}

/** The repository that the source names, or that its file is of. */
function repositoryOf(reference: Reference): Repository | null {
  if ("repository" in reference) {
    return reference.repository;
  }
  const { model } = reference;
  return typeof model === "object" && "HuggingFace" in model
    ? { repo_id: model.HuggingFace.repo_id, quantisation: null, revision: model.HuggingFace.revision }
    : null;
}
