/** The editor of a deployment's presets. */

import { Button, Field, Input, Select, TextArea } from "../../ui";
import { draftsIn, NEW_PRESET, type PresetDraft, textOfDrafts } from "./presets";

const OTHERS = '{"sampling": {"temperature": 0.2}, "max_tokens": {"most": 256}, "forced": ["temperature"]}';

export function PresetsControl({ text, set }: { text: string; set: (text: string) => void }) {
  const drafts = draftsIn(text);
  const replace = (place: number, change: Partial<PresetDraft> | null): void =>
    set(textOfDrafts(drafts.flatMap((each, at) => (at !== place ? [each] : change === null ? [] : [{ ...each, ...change }]))));
  return (
    <div class="presets">
      {drafts.map((draft, place) => (
        <fieldset class="preset" key={place} data-preset={draft.name}>
          <legend>{draft.name || "New preset"}</legend>
          <div class="row">
            <Field label="Name" class="grow">
              <Input value={draft.name} placeholder="terse" onValue={(name) => replace(place, { name })} />
            </Field>
            <Button
              size="small"
              kind="quiet"
              icon="trash"
              aria-label={`Remove the preset ${draft.name}`}
              onClick={() => replace(place, null)}
            />
          </div>
          <Field label="System text">
            <TextArea rows={3} value={draft.system} onValue={(system) => replace(place, { system })} />
          </Field>
          <div class="row">
            <Field label="It stands" class="grow">
              <Select
                value={draft.place}
                options={[
                  { value: "before", label: "before the client's" },
                  { value: "instead", label: "instead of the client's" },
                ]}
                onValue={(value) => replace(place, { place: value })}
              />
            </Field>
            <Field label="Thinking" class="grow">
              <Select
                value={draft.thinking}
                options={[{ value: "", label: "as the request has it" }, "yes", "no"]}
                onValue={(value) => replace(place, { thinking: value as PresetDraft["thinking"] })}
              />
            </Field>
          </div>
          <Field
            label="Other settings"
            help="JSON: sampling, stop, max_tokens, tools, constraint, lora, template_kwargs, forced, ignore, refuse."
          >
            <TextArea class="mono" rows={3} value={draft.others} placeholder={OTHERS} onValue={(others) => replace(place, { others })} />
          </Field>
        </fieldset>
      ))}
      <Button size="small" icon="plus" onClick={() => set(textOfDrafts([...drafts, NEW_PRESET]))}>
        Add a preset
      </Button>
    </div>
  );
}
