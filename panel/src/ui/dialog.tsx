import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef } from "preact/hooks";
import { Button } from "./button";

/**
 * A modal window over the page, while it is mounted. Escape and a click beside it close it, unless `mayClose` says no.
 * With `stays` only its actions do: for what is shown once.
 *
 * `actions` stand at its lower edge, the main one last. With `atOnce` the next key is typed into it; one that an Escape
 * opens must not be: a browser takes both for one.
 */
export function Dialog({
  title,
  close,
  actions,
  children,
  size = "normal",
  mayClose,
  stays = false,
  atOnce = false,
}: {
  title: string;
  close: () => void;
  actions?: ComponentChildren;
  children: ComponentChildren;
  size?: "small" | "normal" | "wide";
  mayClose?: () => boolean;
  stays?: boolean;
  atOnce?: boolean;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const useShown = atOnce ? useLayoutEffect : useEffect;
  useShown(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) {
        before.focus();
      }
    };
  }, []);
  const leave = (): void => {
    if (!stays && (mayClose === undefined || mayClose())) {
      close();
    }
  };
  return (
    <dialog
      ref={element}
      class={`dialog ${size}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        leave();
      }}
      onClose={(event) => {
        // after some Escapes in a row a browser closes it whatever was said: what is mounted stays open
        if (event.currentTarget.isConnected && !event.currentTarget.open) {
          event.currentTarget.showModal();
        }
      }}
      onMouseDown={(event) => {
        if (event.target === event.currentTarget) {
          leave();
        }
      }}
    >
      <div class="dialog-box">
        <header>
          <h2 id={heading}>{title}</h2>
          {stays ? null : <Button kind="quiet" icon="close" aria-label="Close" onClick={leave} />}
        </header>
        <div class="dialog-body">{children}</div>
        {actions ? <footer>{actions}</footer> : null}
      </div>
    </dialog>
  );
}

/** A question before what cannot be taken back. */
export function Confirm({
  title,
  children,
  action,
  kind = "danger",
  busy = false,
  confirm,
  close,
}: {
  title: string;
  children: ComponentChildren;
  action: string;
  kind?: "primary" | "danger";
  busy?: boolean;
  confirm: () => void;
  close: () => void;
}) {
  return (
    <Dialog
      title={title}
      size="small"
      close={close}
      actions={
        <>
          <Button onClick={close}>Cancel</Button>
          <Button kind={kind} busy={busy} onClick={confirm}>
            {action}
          </Button>
        </>
      }
    >
      {children}
    </Dialog>
  );
}
