import { useState } from "preact/hooks";
import { api } from "../../core/api";
import type { TemplatePreview } from "../../types";
import { Button, Dialog, Field, Problem, TextArea } from "../../ui";
import { type Side, settings } from "./chat";
import { path } from "./conversation";
import { messagesOf } from "./request_body";
import { toolsOf } from "./schemas";

const SAMPLE = [{ role: "user", content: "Hello" }];

/** A chat template for one side, which no deployment has to take over first. */
export function TemplateTrial({ side, deployment, close }: { side: Side; deployment: string; close: () => void }) {
  const [text, setText] = useState(side.template.value ?? "");
  const [preview, setPreview] = useState<TemplatePreview | null>(null);
  const [problem, setProblem] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const check = async (): Promise<boolean> => {
    setBusy(true);
    setProblem(null);
    setPreview(null);
    const turns = messagesOf(path(side.conversation.value), settings.value.system);
    const tools = settings.value.usesTools ? toolsOf(settings.value.tools) : [];
    try {
      const made = await api.send<TemplatePreview>("POST", "api/v2/template/preview", {
        deployment,
        chat_template: text,
        messages: turns.length > 0 ? turns : SAMPLE,
        tools: tools.length > 0 ? tools : null,
        ...(settings.value.thinking === "template" ? {} : { thinking: settings.value.thinking === "on" }),
      });
      setPreview(made);
      return true;
    } catch (error) {
      setProblem(error);
      return false;
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog
      title={`A template for side ${side.name}`}
      size="wide"
      close={close}
      actions={
        <>
          {side.template.value === null ? null : (
            <Button
              kind="quiet"
              onClick={() => {
                side.template.value = null;
                close();
              }}
            >
              Back to the deployment's own
            </Button>
          )}
          <Button busy={isBusy} disabled={text.trim() === ""} onClick={() => void check()}>
            Preview
          </Button>
          <Button
            kind="primary"
            disabled={isBusy || text.trim() === ""}
            onClick={() => {
              void check().then((isRight) => {
                if (isRight) {
                  side.template.value = text;
                  close();
                }
              });
            }}
          >
            Use it here
          </Button>
        </>
      }
    >
      <div class="stack">
        <Field
          label="Chat template (Jinja)"
          help="Only this side uses it, and no deployment changes. Its answers are shown as the model writes them: thinking and calls are not parsed, and pictures are not possible."
        >
          <TextArea class="mono" rows={12} value={text} onValue={setText} />
        </Field>
        {problem === null ? null : <Problem error={problem} title="The template cannot be used" />}
        {preview === null ? null : (
          <Field label={`The prompt: ${preview.num_tokens} tokens`}>
            <TextArea class="mono" rows={8} readOnly value={preview.prompt} />
          </Field>
        )}
      </div>
    </Dialog>
  );
}
