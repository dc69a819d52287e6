import { Button, Empty, Field, TextArea } from "../../ui";
import { AnswerView, CopyButton } from "./answer_view";
import type { CopyRequest } from "./copy_dialog";
import { problems, rawPrompt, rawRunning, rawRuns, runRaw, stopRaw } from "./chat";

/** A text that the model continues: no template, nothing parsed. */
export function RawPrompt({
  deployment,
  disabled,
  copy,
}: {
  deployment: string;
  disabled: string | null;
  copy: (request: CopyRequest) => void;
}) {
  const problem = [...problems.value][0];
  const isRunning = rawRunning.value !== null;
  const mayRun = disabled === null && problem === undefined && rawPrompt.value !== "";
  const run = (): void => {
    if (mayRun && !isRunning) {
      runRaw(deployment);
    }
  };
  return (
    <div class="raw">
      <Field
        label="Prompt"
        help="Sent as it stands: special tokens in it count as such, and no chat template is applied. Ctrl+Enter runs it."
        error={problem?.[1]}
      >
        <TextArea
          class="mono"
          rows={10}
          value={rawPrompt.value}
          disabled={disabled !== null}
          placeholder={disabled ?? "Once upon a time"}
          onValue={(text) => {
            rawPrompt.value = text;
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
              event.preventDefault();
              run();
            }
          }}
        />
      </Field>
      <div class="actions">
        {isRunning ? (
          <Button kind="danger" icon="stop" onClick={stopRaw}>
            Stop
          </Button>
        ) : (
          <Button kind="primary" icon="play" disabled={!mayRun} onClick={run}>
            Continue the text
          </Button>
        )}
        <Button kind="quiet" disabled={rawPrompt.value === ""} onClick={() => copy({ raw: rawPrompt.value, deployment })}>
          curl / Python
        </Button>
      </div>
      {rawRuns.value.length === 0 ? (
        <Empty icon="prompt" title="Nothing was run yet" advice="What the model adds to the text appears here, the newest first." />
      ) : (
        rawRuns.value.map((run) => (
          <article class="turn assistant" key={run.id} aria-label={`Continuation ${run.id}`}>
            <p class="raw-prompt truncate" title={run.prompt}>
              {run.prompt}
            </p>
            <AnswerView answer={run.answer}>
              <CopyButton text={run.answer.content} label="Copy the text" />
              <Button
                kind="quiet"
                size="small"
                disabled={isRunning}
                onClick={() => {
                  rawPrompt.value = run.prompt + run.answer.content;
                }}
              >
                Use as prompt
              </Button>
            </AnswerView>
          </article>
        ))
      )}
    </div>
  );
}
