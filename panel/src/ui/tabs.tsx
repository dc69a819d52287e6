import type { ComponentChildren } from "preact";
import { useId, useRef } from "preact/hooks";

export interface Tab {
  id: string;
  label: ComponentChildren;
  panel: () => ComponentChildren;
}

/** One of several views; arrow keys move between the tabs. */
export function Tabs({
  tabs,
  value,
  onValue,
  label,
}: {
  tabs: readonly Tab[];
  value: string;
  onValue: (id: string) => void;
  label: string;
}) {
  const name = useId();
  const list = useRef<HTMLDivElement>(null);
  const current = tabs.find((tab) => tab.id === value) ?? tabs[0];
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined || current === undefined) {
      return;
    }
    event.preventDefault();
    const next = tabs[(tabs.indexOf(current) + step + tabs.length) % tabs.length];
    if (next) {
      onValue(next.id);
      list.current?.querySelector<HTMLElement>(`#${CSS.escape(`${name}-${next.id}`)}`)?.focus();
    }
  };
  return (
    <div class="tabs">
      <div class="tab-list" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
        {tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${name}-${tab.id}`}
            aria-selected={tab === current}
            aria-controls={tab === current ? `${name}-panel` : undefined}
            tabIndex={tab === current ? 0 : -1}
            onClick={() => onValue(tab.id)}
          >
            {tab.label}
          </button>
        ))}
      </div>
      {current ? (
        <div role="tabpanel" id={`${name}-panel`} aria-labelledby={`${name}-${current.id}`} tabIndex={-1}>
          {current.panel()}
        </div>
      ) : null}
    </div>
  );
}
