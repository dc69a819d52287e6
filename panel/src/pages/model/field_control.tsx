/** The control of one field, with its range, what it was, and what is wrong with it. */

import type { ComponentChildren } from "preact";
import { Checkbox, Field, Input, Select, TextArea } from "../../ui";
import { inWords } from "./diff";
import type { FieldSpec } from "./field_spec";
import { change, type Draft } from "./fleet_state";
import { PresetsControl } from "./presets_control";
import { valueAt } from "./spec";
import { type Problems, rangeOf, type Value, valuesOf, warningOf } from "./values";

export function FieldControl({
  field,
  open,
  problems,
  children,
}: {
  field: FieldSpec;
  open: Draft;
  problems: Problems;
  /** In the place of the usual control. */
  children?: ComponentChildren;
}) {
  const value = open.values[field.path] ?? null;
  const isChanged = value !== valuesOf(open.base)[field.path];
  const set = (next: Value): void => change({ [field.path]: next });
  const before = inWords(field, valueAt(open.base, field.path));
  const range = rangeOf(field);
  const warning = warningOf(field, value);
  const more = (
    <>
      {field.help}
      {range ? <> <span class="range">{range}</span></> : null}
      {isChanged && !open.isNew ? <span class="was"> Was {before}.</span> : null}
      {warning ? <span class="unusual"> {warning}</span> : null}
    </>
  );
  const classes = ["control", isChanged && "changed", isTall(field) && "tall"].filter(Boolean).join(" ");
  if (field.kind === "flag") {
    return (
      <div class={classes} data-field={field.path}>
        <Checkbox label={field.label} help={more} checked={value === true} onValue={set} />
      </div>
    );
  }
  return (
    <div class={classes} data-field={field.path}>
      <Field label={<Label field={field} />} help={more} error={open.refused[field.path] ?? problems[field.path]}>
        {children ?? <Control field={field} value={value} set={set} />}
      </Field>
    </div>
  );
}

function isTall(field: FieldSpec): boolean {
  return field.kind === "lines" || field.kind === "adapters" || field.kind === "source" || field.kind === "presets";
}

function Label({ field }: { field: FieldSpec }) {
  return (
    <>
      {field.label}
      {field.unit ? <span class="unit"> {field.unit}</span> : null}
    </>
  );
}

function Control({ field, value, set }: { field: FieldSpec; value: Value; set: (value: Value) => void }) {
  const text = typeof value === "string" ? value : "";
  switch (field.kind) {
    case "choice":
      return (
        <Select
          value={text}
          options={[
            ...(field.empty === undefined ? [] : [{ value: "", label: field.empty }]),
            ...(field.options ?? []),
            ...(text === "" || field.options?.includes(text) ? [] : [text]),
          ]}
          onValue={set}
        />
      );
    case "switch":
      return (
        <Select
          value={text}
          options={[{ value: "", label: field.empty ?? "" }, { value: "yes", label: "yes" }, { value: "no", label: "no" }]}
          onValue={set}
        />
      );
    case "marker":
      return <Marker field={field} value={value} set={set} />;
    case "presets":
      return <PresetsControl text={text} set={set} />;
    case "lines":
    case "adapters":
      return <TextArea class="mono" rows={2} value={text} placeholder={field.empty ?? ""} onValue={set} />;
    default:
      return (
        <Input
          value={text}
          placeholder={field.empty ?? ""}
          inputMode={field.kind === "integer" && (field.low ?? -1) >= 0 ? "numeric" : field.kind === "number" ? "decimal" : "text"}
          onValue={set}
        />
      );
  }
}

function Marker({ field, value, set }: { field: FieldSpec; value: Value; set: (value: Value) => void }) {
  const isOwn = value === null;
  return (
    <div class="marker">
      <Select
        value={isOwn ? "own" : "text"}
        options={[
          { value: "own", label: "the template's own" },
          { value: "text", label: "this text" },
        ]}
        onValue={(choice) => set(choice === "own" ? null : "")}
      />
      {isOwn ? null : <Input class="mono" id={undefined} aria-label={`${field.label}: text`} value={String(value)} onValue={set} />}
    </div>
  );
}
