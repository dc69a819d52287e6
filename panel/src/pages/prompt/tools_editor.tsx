import { Button, Field, Input, TextArea } from "../../ui";
import { change, problems, settings } from "./chat";
import { EXAMPLE_TOOL, MAX_TOOLS, type Tool } from "./schemas";

/** The tools that the model may call, each with a JSON Schema of its arguments. */
export function ToolsEditor() {
  const { tools } = settings.value;
  const replace = (index: number, some: Partial<Tool>): void =>
    change({ tools: tools.map((tool, at) => (at === index ? { ...tool, ...some } : tool)) });
  return (
    <>
      {tools.map((tool, index) => {
        const problem = problems.value.get(`tools[${index}]`);
        const isAboutName = problem?.includes("name ") === true;
        return (
          <fieldset class="tool-editor" key={index}>
            <legend class="unseen">Tool {index + 1}</legend>
            <Field label="Name" error={isAboutName ? problem : undefined}>
              <Input class="mono" value={tool.name} onValue={(name) => replace(index, { name })} />
            </Field>
            <Field label="Description" help="The model reads it.">
              <Input value={tool.description} onValue={(description) => replace(index, { description })} />
            </Field>
            <Field label="Arguments" help="A JSON Schema; empty for none." error={isAboutName ? undefined : problem}>
              <TextArea class="mono" rows={8} value={tool.schema} onValue={(schema) => replace(index, { schema })} />
            </Field>
            <Button
              size="small"
              kind="quiet"
              icon="trash"
              onClick={() => change({ tools: tools.filter((_, at) => at !== index) })}
            >
              Remove the tool
            </Button>
          </fieldset>
        );
      })}
      <div class="actions">
        <Button
          size="small"
          icon="plus"
          disabled={tools.length >= MAX_TOOLS}
          onClick={() => change({ tools: [...tools, { name: "", description: "", schema: "" }] })}
        >
          Add a tool
        </Button>
        {tools.some((tool) => tool.name === EXAMPLE_TOOL.name) ? null : (
          <Button size="small" kind="quiet" onClick={() => change({ tools: [...tools, EXAMPLE_TOOL] })}>
            Add an example
          </Button>
        )}
      </div>
    </>
  );
}
