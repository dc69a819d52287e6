import { useEffect, useState } from "preact/hooks";
import { info, loadInfo } from "../../core/api";
import type { Info } from "../../types";
import { Button, Copy, Dialog, Field, Input, Note, Problem } from "../../ui";
import { JoinPin } from "./join_pin";
import { JoinTokens } from "./join_tokens";

const MAX_SLOTS = 4096;
const NAME = /^[\w.~-]{1,128}$/;

/** The command that starts an agent on another machine. */
export function AddAgent({ close }: { close: () => void }) {
  const [found, setFound] = useState<Info | null>(info.value);
  const [failure, setFailure] = useState<unknown>(null);
  const [name, setName] = useState("");
  const [slots, setSlots] = useState("4");
  const [showsToken, setShowsToken] = useState(false);
  const [showsPin, setShowsPin] = useState(false);
  const load = (): void => {
    setFailure(null);
    loadInfo().then(setFound, setFailure);
  };
  useEffect(load, []);
  const slotsAreWrong = !/^\d+$/.test(slots) || Number(slots) < 1 || Number(slots) > MAX_SLOTS;
  const nameIsWrong = name !== "" && !NAME.test(name);
  return (
    <Dialog
      title="Add an agent"
      stays={showsToken || showsPin}
      close={close}
      actions={
        showsToken || showsPin ? (
          <Button kind="primary" onClick={close}>
            Done
          </Button>
        ) : undefined
      }
    >
      <p>
        Run this on a machine with a model or a GPU. The agent dials in by itself, is sent the model, and shows up here; nothing
        has to be opened on its side.
      </p>
      {failure !== null ? (
        <Problem error={failure} retry={load} />
      ) : found === null ? (
        <div class="skeleton short" role="status" aria-busy="true" aria-label="Asking the balancer" />
      ) : (
        <>
          {found.join.problem ? <Note tone="warn">{found.join.problem}</Note> : null}
          <div class="add-agent-fields">
            <Field
              label="Name"
              help="What people call it, in lists and results. One name for each device is a good rule."
              error={nameIsWrong && "Letters, digits, and . _ ~ - only; 128 characters at most"}
            >
              <Input value={name} onValue={setName} placeholder="rack-1" />
            </Field>
            <Field
              label="Slots"
              help="Requests at a time. Start with 4 to 8; llama.cpp runs at most 256."
              error={slotsAreWrong && `A number from 1 to ${MAX_SLOTS}`}
            >
              <Input type="number" min={1} max={MAX_SLOTS} value={slots} onValue={setSlots} />
            </Field>
          </div>
          {nameIsWrong || slotsAreWrong ? null : found.join.needs_key ? (
            <>
              <JoinTokens name={name} slots={slots} onShown={setShowsToken} />
              <JoinPin slots={slots} onShown={setShowsPin} />
            </>
          ) : found.join.address === null ? null : (
            <Copy text={commandOf(found, name, slots)} label="Copy the command" />
          )}
          <p class="muted">
            Run one agent for each device.{" "}
            {found.join.needs_key
              ? "Paddler 4.1 agents have no key: --legacy-agents names the networks that they may dial in from."
              : "A Paddler 4.1 agent works too, with the same address."}
          </p>
        </>
      )}
    </Dialog>
  );
}

export function commandOf(found: Info, name: string, slots: string): string {
  return [
    "paddler-trio agent",
    `--management-addr ${found.join.address}`,
    `--slots ${slots}`,
    name ? `--name ${name}` : "",
  ]
    .filter(Boolean)
    .join(" ");
}
