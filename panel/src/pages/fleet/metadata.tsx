import { useEffect, useState } from "preact/hooks";
import { api, ApiError } from "../../core/api";
import type { Agent } from "../../types";
import { Copy, Dialog, Empty, Input, Note, Problem, Table, Tabs } from "../../ui";
import { modelName } from "./agent_facts";

const TEMPLATE = "tokenizer.chat_template";

type Pairs = Readonly<Record<string, string>>;

/** The key-value pairs of the model's file on an agent, and the template in force. */
export function Metadata({ agent, close }: { agent: Agent; close: () => void }) {
  const [pairs, setPairs] = useState<Pairs | null>(null);
  const [override, setOverride] = useState<string | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [tab, setTab] = useState("pairs");
  const load = (): void => {
    setFailure(null);
    const base = `api/v1/agent/${encodeURIComponent(agent.id)}`;
    const wanted = agent.uses_chat_template_override
      ? api.get<{ content: string } | null>(`${base}/chat_template_override`)
      : Promise.resolve(null);
    Promise.all([api.get<{ metadata: Pairs } | null>(`${base}/model_metadata`), wanted]).then(([found, template]) => {
      setPairs(found?.metadata ?? {});
      setOverride(template?.content ?? null);
    }, setFailure);
  };
  useEffect(load, [agent.id]);
  const template = override ?? pairs?.[TEMPLATE];
  return (
    <Dialog title={modelName(agent.model_path) ?? agent.label} size="wide" close={close}>
      <p class="muted">On {agent.label}{agent.model_path ? `: ${agent.model_path}` : ""}</p>
      {failure !== null ? (
        <Problem error={reasonOf(failure)} retry={load} title="The agent's answer is missing." />
      ) : pairs === null ? (
        <div class="skeleton" role="status" aria-busy="true" aria-label="Asking the agent" />
      ) : Object.keys(pairs).length === 0 ? (
        <Empty icon="model" title="No model is loaded" advice="The pairs of its file are shown as soon as the agent has one." />
      ) : (
        <Tabs
          label="About the model"
          value={tab}
          onValue={setTab}
          tabs={[
            { id: "pairs", label: "Metadata", panel: () => <PairTable pairs={pairs} /> },
            {
              id: "template",
              label: "Chat template",
              panel: () =>
                template === undefined ? (
                  <Empty title="The model has no chat template" advice="One can be set on the page Model." />
                ) : (
                  <div class="stack">
                    {override !== null ? <Note>This template is in force in the place of the model's own.</Note> : null}
                    <Copy text={template} label="Copy the template" />
                  </div>
                ),
            },
          ]}
        />
      )}
    </Dialog>
  );
}

function PairTable({ pairs }: { pairs: Pairs }) {
  const [text, setText] = useState("");
  const wanted = text.toLowerCase();
  const rows = Object.entries(pairs)
    .filter(([name, value]) => `${name} ${value}`.toLowerCase().includes(wanted))
    .sort(([a], [b]) => a.localeCompare(b));
  return (
    <div class="stack">
      <Input type="search" value={text} onValue={setText} placeholder="Name or value" aria-label="Show only pairs with this text" />
      <Table
        label="Metadata of the model"
        rows={rows}
        rowKey={([name]) => name}
        maxHeight="50vh"
        columns={[
          { id: "name", title: "Name", width: "40%", render: ([name]) => <code>{name}</code>, value: ([name]) => name },
          {
            id: "value",
            title: "Value",
            render: ([, value]) => (
              <span class="pair-value mono" title={value.slice(0, 500)}>
                {value.length > 160 ? `${value.slice(0, 160)}…` : value}
              </span>
            ),
          },
        ]}
      />
    </div>
  );
}

/** The balancer's answers here are statuses without words, as Paddler's are. */
function reasonOf(error: unknown): unknown {
  if (!(error instanceof ApiError)) {
    return error;
  }
  const words = {
    404: "The agent is gone, or has no model yet.",
    502: "The link to the agent broke while it was asked.",
    504: "The agent did not answer in time.",
  }[error.status];
  return words === undefined ? error : new ApiError(error.status, words);
}
