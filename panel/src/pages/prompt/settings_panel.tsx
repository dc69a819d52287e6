import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Checkbox, Field, Input, Select, TextArea } from "../../ui";
import { change, problems, settings } from "./chat";
import { PARAMETERS, type Parameter, rangeOf } from "./parameters";
import type { Settings } from "./request_body";
import { saved } from "./saved";
import { SavedPrompts } from "./saved_prompts";
import { ToolsEditor } from "./tools_editor";

/** Everything about a request but its turns; what is left empty is as the deployment has it. */
export function SettingsPanel({ isRaw }: { isRaw: boolean }) {
  const current = settings.value;
  return (
    <div class="prompt-settings">
      {isRaw ? null : (
        <>
          <Section title="Saved prompts" mark={saved.value.length > 0 ? String(saved.value.length) : null} isWrong={false}>
            <SavedPrompts />
          </Section>
          <Field label="System text">
            <TextArea
              rows={3}
              value={current.system}
              placeholder="You are a helpful assistant."
              onValue={(system) => change({ system })}
            />
          </Field>
          <Field label="Thinking" help="Models without thinking ignore it.">
            <Select
              value={current.thinking}
              options={[
                { value: "template", label: "as the template has it" },
                { value: "on", label: "on" },
                { value: "off", label: "off" },
              ]}
              onValue={(thinking) => change({ thinking: thinking as Settings["thinking"] })}
            />
          </Field>
        </>
      )}
      <Parameters group="usual" />
      <Field label="Stop texts" help="One a line; \n stands for a line break." error={problems.value.get("stop")}>
        <TextArea class="mono" rows={2} value={current.stop} onValue={(stop) => change({ stop })} />
      </Field>
      <Checkbox
        label="Never end by itself"
        help="ignore_eos: the answer is as long as max tokens allow."
        checked={current.ignoresEnd}
        onValue={(ignoresEnd: boolean) => change({ ignoresEnd })}
      />
      <Section title="More sampling" mark={countOf("sampling")} isWrong={isWrong("sampling")}>
        <Parameters group="sampling" />
      </Section>
      <Section title="Repetition" mark={countOf("repetition")} isWrong={isWrong("repetition")}>
        <Parameters group="repetition" />
      </Section>
      <Section
        title="Answer format"
        mark={current.format === "text" ? null : current.format}
        isWrong={problems.value.has("response_format")}
      >
        <div class="settings-group">
          <Field label="Format">
            <Select
              value={current.format}
              options={[
                { value: "text", label: "text" },
                { value: "json", label: "any JSON object" },
                { value: "schema", label: "JSON of a schema" },
              ]}
              onValue={(format) => change({ format: format as Settings["format"] })}
            />
          </Field>
          {current.format === "schema" ? (
            <Field label="JSON Schema" error={problems.value.get("response_format")}>
              <TextArea class="mono" rows={10} value={current.schema} onValue={(schema) => change({ schema })} />
            </Field>
          ) : null}
        </div>
      </Section>
      {isRaw ? null : (
        <Section
          title="Tools"
          mark={current.tools.length > 0 ? String(current.tools.length) : null}
          isWrong={[...problems.value.keys()].some((name) => name.startsWith("tools"))}
        >
          <div class="settings-group">
            <Checkbox
              label="Offer these tools"
              checked={current.usesTools}
              onValue={(usesTools: boolean) => change({ usesTools })}
            />
            <Field label="Choice">
              <Select
                value={current.toolChoice}
                options={[
                  { value: "auto", label: "the model decides" },
                  { value: "required", label: "one must be called" },
                  { value: "none", label: "none may be called" },
                ]}
                onValue={(toolChoice) => change({ toolChoice: toolChoice as Settings["toolChoice"] })}
              />
            </Field>
            <ToolsEditor />
          </div>
        </Section>
      )}
    </div>
  );
}

// ------------------------------------------------------------------------------------- inside

function Parameters({ group }: { group: Parameter["group"] }) {
  return (
    <div class="settings-grid">
      {PARAMETERS.filter((parameter) => parameter.group === group).map((parameter) => (
        <Field
          key={parameter.name}
          label={parameter.label}
          help={`${parameter.help} ${rangeOf(parameter)}.`}
          error={problems.value.get(parameter.name)}
        >
          <Input
            inputMode="decimal"
            value={settings.value.parameters[parameter.name] ?? ""}
            placeholder="default"
            onValue={(text) =>
              change({ parameters: { ...settings.value.parameters, [parameter.name]: text } })
            }
          />
        </Field>
      ))}
    </div>
  );
}

/** A part that can be closed, unless something in it is wrong; `mark` shows that it has effect. */
function Section({
  title,
  mark,
  isWrong,
  children,
}: {
  title: string;
  mark: string | null;
  isWrong: boolean;
  children: ComponentChildren;
}) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details open={isOpen || isWrong} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {title} {mark === null ? null : <b>{mark}</b>}
      </summary>
      {children}
    </details>
  );
}

function isWrong(group: Parameter["group"]): boolean {
  return PARAMETERS.some((parameter) => parameter.group === group && problems.value.has(parameter.name));
}

/** How many of a closed group are set. */
function countOf(group: Parameter["group"]): string | null {
  const set = PARAMETERS.filter(
    (parameter) => parameter.group === group && (settings.value.parameters[parameter.name] ?? "").trim() !== "",
  );
  return set.length > 0 ? String(set.length) : null;
}
