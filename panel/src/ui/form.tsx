import { type ComponentChildren, createContext, type InputHTMLAttributes, type SelectHTMLAttributes, type TextareaHTMLAttributes } from "preact";
import { useContext, useId } from "preact/hooks";

interface FieldParts {
  id: string;
  describedBy: string | undefined;
  isWrong: boolean;
}

const InField = createContext<FieldParts | null>(null);

/** A labelled control: the Input, Select or textarea inside gets the label, the help and the mark of an error. */
export function Field({
  label,
  help,
  error,
  children,
  class: more,
}: {
  label: ComponentChildren;
  help?: ComponentChildren;
  error?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  const id = useId();
  const isWrong = error !== undefined && error !== null && error !== "" && error !== false;
  const describedBy = [help && `${id}-help`, isWrong && `${id}-error`].filter(Boolean).join(" ");
  return (
    <div class={["field", isWrong && "wrong", more].filter(Boolean).join(" ")}>
      <label for={id}>{label}</label>
      <InField.Provider value={{ id, describedBy: describedBy || undefined, isWrong }}>
        {children}
      </InField.Provider>
      {isWrong ? (
        <p class="field-error" id={`${id}-error`}>
          {error}
        </p>
      ) : null}
      {help ? (
        <p class="field-help" id={`${id}-help`}>
          {help}
        </p>
      ) : null}
    </div>
  );
}

function useField(): { id?: string; "aria-describedby"?: string | undefined; "aria-invalid"?: true | undefined } {
  const field = useContext(InField);
  return field === null
    ? {}
    : { id: field.id, "aria-describedby": field.describedBy, "aria-invalid": field.isWrong || undefined };
}

/** `onValue` gets the text at each change. */
export function Input({
  onValue,
  class: more,
  ...rest
}: InputHTMLAttributes<HTMLInputElement> & { onValue?: (value: string) => void }) {
  return (
    <input
      autocomplete="off"
      spellcheck={false}
      {...useField()}
      {...rest}
      class={["input", more].filter(Boolean).join(" ")}
      onInput={(event) => {
        rest.onInput?.(event);
        onValue?.(event.currentTarget.value);
      }}
    />
  );
}

export function TextArea({
  onValue,
  class: more,
  ...rest
}: TextareaHTMLAttributes<HTMLTextAreaElement> & { onValue?: (value: string) => void }) {
  return (
    <textarea
      spellcheck={false}
      {...useField()}
      {...rest}
      class={["input", more].filter(Boolean).join(" ")}
      onInput={(event) => {
        rest.onInput?.(event);
        onValue?.(event.currentTarget.value);
      }}
    />
  );
}

export interface Option {
  value: string;
  label: string;
  disabled?: boolean;
}

export function Select({
  options,
  onValue,
  class: more,
  ...rest
}: SelectHTMLAttributes<HTMLSelectElement> & {
  options: readonly (Option | string)[];
  onValue?: (value: string) => void;
}) {
  return (
    <select
      {...useField()}
      {...rest}
      class={["input", "select", more].filter(Boolean).join(" ")}
      onChange={(event) => {
        rest.onChange?.(event);
        onValue?.(event.currentTarget.value);
      }}
    >
      {options.map((each) => {
        const option = typeof each === "string" ? { value: each, label: each } : each;
        return (
          <option key={option.value} value={option.value} disabled={option.disabled}>
            {option.label}
          </option>
        );
      })}
    </select>
  );
}

export function Checkbox({
  label,
  help,
  checked,
  disabled,
  name,
  onValue,
}: {
  label: ComponentChildren;
  help?: ComponentChildren;
  checked: boolean;
  disabled?: boolean;
  name?: string;
  onValue: (value: boolean) => void;
}) {
  const id = useId();
  return (
    <div class="checkbox">
      <label>
        <input
          type="checkbox"
          name={name}
          checked={checked}
          disabled={disabled}
          aria-describedby={help ? id : undefined}
          onChange={(event) => onValue(event.currentTarget.checked)}
        />
        <span>{label}</span>
      </label>
      {help ? (
        <p class="field-help" id={id}>
          {help}
        </p>
      ) : null}
    </div>
  );
}

/** A choice of a few, all of them visible. */
export function Segmented<T extends string>({
  label,
  options,
  value,
  onValue,
}: {
  label: string;
  options: readonly { value: T; label: ComponentChildren; title?: string }[];
  value: T;
  onValue: (value: T) => void;
}) {
  const name = useId();
  return (
    <div class="segmented" role="radiogroup" aria-label={label}>
      {options.map((option) => (
        <label key={option.value} title={option.title} class={option.value === value ? "on" : undefined}>
          <input
            type="radio"
            name={name}
            value={option.value}
            checked={option.value === value}
            aria-label={option.title}
            onChange={() => onValue(option.value)}
          />
          <span>{option.label}</span>
        </label>
      ))}
    </div>
  );
}
