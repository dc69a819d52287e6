import { useState } from "preact/hooks";
import { Button, Field, Input, Select, toast } from "../../ui";
import { change, draft, settings } from "./chat";
import { keep, MOST_NAME_CHARS, saved, savingProblem, withPrompt } from "./saved";

/** Save the system text and the message under a name, and take them up again. */
export function SavedPrompts() {
  const [name, setName] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [chosen, choose] = useState("");
  const known = saved.value;
  const found = known.find((each) => each.name === chosen);
  const store = (): void => {
    const wrong = savingProblem(name, settings.value.system, draft.value, known);
    setProblem(wrong);
    if (wrong === null) {
      const prompt = { name: name.trim(), system: settings.value.system, text: draft.value };
      const isKept = keep(withPrompt(known, prompt));
      choose(prompt.name);
      setName("");
      toast(isKept ? "ok" : "warn", isKept ? "It is saved in this browser." : "The browser keeps nothing: it lasts as long as this page.");
    }
  };
  return (
    <div class="settings-group">
      <Field label="Prompt to take up" help="In this browser alone.">
        <Select
          value={found ? chosen : ""}
          disabled={known.length === 0}
          options={[
            { value: "", label: known.length === 0 ? "none yet" : "choose one" },
            ...known.map((each) => ({ value: each.name, label: each.name })),
          ]}
          onValue={(value) => {
            choose(value);
            const prompt = known.find((each) => each.name === value);
            if (prompt) {
              change({ system: prompt.system });
              draft.value = prompt.text;
            }
          }}
        />
      </Field>
      {found ? (
        <Button
          size="small"
          icon="close"
          onClick={() => {
            keep(known.filter((each) => each.name !== chosen));
            choose("");
          }}
        >
          Delete {chosen}
        </Button>
      ) : null}
      <Field label="Save what is written as" error={problem}>
        <Input value={name} maxLength={MOST_NAME_CHARS} onValue={setName} placeholder="a name" />
      </Field>
      <Button size="small" onClick={store}>
        Save
      </Button>
    </div>
  );
}
