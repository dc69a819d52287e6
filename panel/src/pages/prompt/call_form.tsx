import { useState } from "preact/hooks";
import { Button, Field, TextArea } from "../../ui";
import type { ToolCall } from "./answer";
import type { ToolResult } from "./conversation";

/** What the tools returned, entered by hand, and sent back to the model. */
export function CallForm({
  calls,
  send,
}: {
  calls: readonly ToolCall[];
  send: (results: readonly ToolResult[]) => void;
}) {
  const [texts, setTexts] = useState<readonly string[]>(calls.map(() => ""));
  return (
    <form
      class="call-form"
      onSubmit={(event) => {
        event.preventDefault();
        send(calls.map((call, index) => ({ callId: call.id, name: call.name, text: texts[index] ?? "" })));
      }}
    >
      {calls.map((call, index) => (
        <Field key={call.id} label={<>Result of {call.name}</>} help="JSON or plain text, as the tool would return it.">
          <TextArea
            class="mono"
            rows={2}
            value={texts[index] ?? ""}
            onValue={(text) => setTexts(texts.map((each, at) => (at === index ? text : each)))}
          />
        </Field>
      ))}
      <div class="actions">
        <Button kind="primary" type="submit" icon="send">
          Send the {calls.length === 1 ? "result" : "results"}
        </Button>
      </div>
    </form>
  );
}
