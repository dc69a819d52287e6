/** A conversation with a model over the inference path, one or two at a time; or a raw prompt. */

import { useEffect, useRef, useState } from "preact/hooks";
import { hrefOf, route } from "../../core/router";
import { store, useTopics } from "../../core/store";
import { Badge, Button, Confirm, Empty, Note, Page, Problem, Segmented, Select, toast } from "../../ui";
import {
  type Side,
  clear,
  compare,
  isBusy,
  isCompared,
  mode,
  restore,
  send,
  settings,
  shownSides,
  sides,
  stop,
} from "./chat";
import { Composer } from "./composer";
import { asFile, fromFile, MAX_FILE_BYTES } from "./conversation_file";
import { CopyAs, type CopyRequest } from "./copy_dialog";
import { keepConversation } from "./kept";
import { type Model, loadModels, models, modelsProblem, obstacle } from "./models";
import { sentence } from "../requests/waterfall_rows";
import { RawPrompt } from "./raw_prompt";
import { SettingsPanel } from "./settings_panel";
import { SideView } from "./side_view";
import { ConcurrencyTest } from "./concurrency_test";
import { TemplateTrial } from "./template_trial";

export default function PromptPage() {
  useTopics("agents", "deployments");
  const [copied, copy] = useState<CopyRequest | null>(null);
  const [trial, setTrial] = useState<Side | null>(null);
  const [streams, setStreams] = useState(false);
  const [showsSettings, setShowsSettings] = useState(() => innerWidth >= 1100);
  // what serves, and whether it is loaded, is asked again when the feed says that it changed
  const phases = [...store.deployments.value].map(([name, each]) => `${name} ${each.phase} ${each.target}`).join();
  useEffect(() => void loadModels(), [phases]);
  useEffect(keepConversation, []);
  useEffect(() => {
    const asked = route.peek().query.get("sides")?.split(",") ?? [];
    if (asked.length === 2 && !isBusy.peek()) {
      mode.value = "chat";
      compare(true);
      sides.forEach((side, place) => {
        side.deployment.value = asked[place] ?? null;
      });
    }
  }, []);

  const known = models.value;
  const blocked = obstacle.value;
  const isRaw = mode.value === "raw";
  const chosen = shownSides.value.map((side) => deploymentOf(side, known));
  const blind = known?.find((model) => chosen.includes(model.name) && !model.sees);
  const dead = chosen.find((name) => isDead(name));
  const disabled =
    blocked?.title ??
    (known === null ? "Asking what can be asked…" : dead === undefined ? null : `${dead} would not answer: see above.`);

  return (
    <Page title="Prompt" actions={<Actions test={disabled === null ? () => setStreams(true) : null} toggle={() => setShowsSettings(!showsSettings)} isOn={showsSettings} />} wide>
      {known === null && modelsProblem.value !== null ? (
        <Problem error={modelsProblem.value} title="What can be asked is not known" retry={() => void loadModels()} />
      ) : null}
      {store.balancer.value?.capture === true ? (
        <Note tone="warn">Capture is on: the balancer keeps the beginning of each request and answer, and shows it on the Requests page.</Note>
      ) : null}
      <div class={showsSettings ? "prompt with-settings" : "prompt"}>
        <div class="prompt-main">
          {blocked !== null ? (
            <Empty icon="prompt" title={blocked.title} advice={blocked.advice}>
              <a class="button primary" href={blocked.link}>
                Open the Model page
              </a>
            </Empty>
          ) : null}
          {blocked === null ? <WhatWaits deployments={[...new Set(chosen)]} /> : null}
          <div class={isCompared.value && !isRaw ? "sides two" : "sides"}>
            {(isRaw ? [sides[0]] : shownSides.value).map((side) => {
              const deployment = deploymentOf(side, known);
              return (
                <section class="side" key={side.name} aria-label={isCompared.value ? `Side ${side.name}` : "Conversation"}>
                  <SideHead side={side} known={known ?? []} deployment={deployment} isRaw={isRaw} tryTemplate={() => setTrial(side)} />
                  {isRaw ? (
                    <RawPrompt deployment={deployment} disabled={disabled} copy={copy} />
                  ) : side.conversation.value.turns.size === 0 ? (
                    blocked === null ? <Greeting /> : null
                  ) : (
                    <SideView side={side} deployment={deployment} copy={copy} />
                  )}
                </section>
              );
            })}
          </div>
          {isRaw ? null : (
            <Composer
              send={() => {
                try {
                  send(chosen);
                } catch (error) {
                  toast("bad", error instanceof Error ? error.message : String(error));
                }
              }}
              stop={() => shownSides.value.forEach(stop)}
              seesPictures={blind === undefined ? null : `${labelOf(blind)} sees no pictures: it has no projection`}
              disabled={disabled}
            />
          )}
        </div>
        {showsSettings ? (
          <aside class="prompt-aside" aria-label="Settings of the request">
            <SettingsPanel isRaw={isRaw} />
          </aside>
        ) : null}
      </div>
      {copied === null ? null : <CopyAs request={copied} close={() => copy(null)} />}
      {streams ? <ConcurrencyTest deployment={chosen[0] ?? "default"} close={() => setStreams(false)} /> : null}
      {trial === null ? null : (
        <TemplateTrial side={trial} deployment={deploymentOf(trial, known)} close={() => setTrial(null)} />
      )}
    </Page>
  );
}

// ------------------------------------------------------------------------------------- inside

/** Nobody answers for it, and nothing is under way: a request would wait in vain. */
function isDead(deployment: string): boolean {
  const live = store.deployments.value.get(deployment);
  return live?.meets === "nobody" && live.state.severity === "bad";
}

/** What a request to these deployments would wait for, before it is sent. */
function WhatWaits({ deployments }: { deployments: readonly string[] }) {
  return (
    <>
      {deployments.map((name) => {
        const live = store.deployments.value.get(name);
        return live && (live.meets === "nobody" || live.meets === "hold") ? (
          <Note key={name} tone={live.meets === "hold" ? "info" : isDead(name) ? "bad" : "warn"}>
            <b>{name}</b>: {sentence(live.state.sentence)} {sentence(live.state.follows)} {sentence(live.state.todo)}
            {isDead(name) ? (
              <>
                {" "}
                <a href={hrefOf("problems")}>Show the problems</a> or <a href={hrefOf("model", ["edit", name])}>change {name}</a>.
              </>
            ) : null}
          </Note>
        ) : null;
      })}
    </>
  );
}

/** The chosen deployment if it is still there, else the first. */
function deploymentOf(side: Side, known: readonly Model[] | null): string {
  const wanted = side.deployment.value;
  if (wanted !== null && (known === null || known.some((model) => model.name === wanted))) {
    return wanted;
  }
  return known?.[0]?.name ?? "default";
}

function Actions({ test, toggle, isOn }: { test: (() => void) | null; toggle: () => void; isOn: boolean }) {
  const file = useRef<HTMLInputElement>(null);
  const [asks, setAsks] = useState(false);
  const hasTurns = sides.some((side) => side.conversation.value.turns.size > 0);
  return (
    <>
      <Segmented
        label="Kind of prompt"
        value={mode.value}
        options={[
          { value: "chat", label: "Chat" },
          { value: "raw", label: "Raw" },
        ]}
        onValue={(value) => {
          mode.value = value;
        }}
      />
      {mode.value === "chat" ? (
        <>
          <Button
            aria-pressed={isCompared.value}
            disabled={isBusy.value}
            icon="cards"
            onClick={() => compare(!isCompared.value)}
          >
            {isCompared.value ? "One side" : "Side by side"}
          </Button>
          <Button icon="plus" disabled={!hasTurns} onClick={() => setAsks(true)}>
            New
          </Button>
          <Button icon="download" aria-label="Export the conversation" disabled={!hasTurns} onClick={download} />
          <Button icon="upload" aria-label="Import a conversation" onClick={() => file.current?.click()} />
          <input
            ref={file}
            type="file"
            class="unseen"
            tabIndex={-1}
            aria-hidden="true"
            accept="application/json,.json"
            onChange={(event) => {
              const chosen = event.currentTarget.files?.[0];
              event.currentTarget.value = "";
              if (chosen !== undefined) {
                void upload(chosen);
              }
            }}
          />
        </>
      ) : null}
      <Button icon="metrics" aria-label="Several streams at the same time" disabled={test === null} onClick={() => test?.()} />
      <Button icon="filter" aria-label={isOn ? "Hide the settings" : "Show the settings"} aria-expanded={isOn} onClick={toggle} />
      {asks ? (
        <Confirm
          title="Begin a new conversation?"
          action="Begin anew"
          confirm={() => {
            clear();
            setAsks(false);
          }}
          close={() => setAsks(false)}
        >
          <p>This one is gone then, with all its branches. Export it first if it is worth keeping.</p>
        </Confirm>
      ) : null}
    </>
  );
}

function SideHead({
  side,
  known,
  deployment,
  isRaw,
  tryTemplate,
}: {
  side: Side;
  known: readonly Model[];
  deployment: string;
  isRaw: boolean;
  tryTemplate: () => void;
}) {
  const model = known.find((each) => each.name === deployment);
  return (
    <header class="side-head">
      {isCompared.value && !isRaw ? <span class="side-name">{side.name}</span> : null}
      <Select
        aria-label={isCompared.value ? `Deployment of side ${side.name}` : "Deployment"}
        value={deployment}
        disabled={known.length === 0}
        options={
          known.length === 0
            ? [{ value: deployment, label: "no deployment" }]
            : known.map((each) => ({ value: each.name, label: labelOf(each) }))
        }
        onValue={(value) => {
          side.deployment.value = value;
        }}
      />
      {model === undefined ? null : <ModelState model={model} />}
      <span class="grow" />
      {isRaw ? null : (
        <Button size="small" kind="quiet" aria-pressed={side.template.value !== null} disabled={model === undefined} onClick={tryTemplate}>
          {side.template.value === null ? "Try a template" : "Template under trial"}
        </Button>
      )}
    </header>
  );
}

/** The deployment, and what it serves if that has another name. */
function labelOf(model: Model): string {
  return model.id === model.name ? model.name : `${model.name}: ${model.id}`;
}

function ModelState({ model }: { model: Model }) {
  if (model.status.failed === true) {
    return (
      <Badge tone="bad" title="Loading it has failed; the Fleet page shows why.">
        failed
      </Badge>
    );
  }
  if (model.status.value === "loaded") {
    return (
      <Badge tone="ok" dot>
        loaded
      </Badge>
    );
  }
  const why = "A request waits until it is loaded, and its place in the queue is shown.";
  return (
    <Badge tone="warn" title={why}>
      {model.status.value}
    </Badge>
  );
}

function Greeting() {
  return (
    <Empty
      icon="prompt"
      title="Ask the model something"
      advice="The request goes the way of every client: queue, slot, agent. Each answer has its figures, and a link to what happened on the way."
    />
  );
}

function download(): void {
  const text = asFile(sides[0].conversation.value, settings.value);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `conversation-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.json`;
  link.click();
  URL.revokeObjectURL(url);
}

async function upload(file: File): Promise<void> {
  try {
    if (file.size > MAX_FILE_BYTES) {
      throw new Error(`the file has ${file.size} bytes, the limit is ${MAX_FILE_BYTES}`);
    }
    const { conversation, settings: read } = fromFile(await file.text());
    restore(conversation, read);
    toast("ok", `${file.name} is imported.`);
  } catch (error) {
    toast("bad", `${file.name} is not imported: ${error instanceof Error ? error.message : String(error)}`);
  }
}
