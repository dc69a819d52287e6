/** Going anywhere by the keyboard: `/` opens a list to type in, `g` and a letter go to a page. */

import { useEffect, useRef, useState } from "preact/hooks";
import { hrefOf, navigate } from "../core/router";
import { store, useTopics } from "../core/store";
import { PAGES } from "../pages/registry";
import { Dialog } from "../ui";
import { fitting, placesOf } from "./jump";

/** Between `g` and its letter. */
const SECOND_KEY_MS = 1500;

export function Palette() {
  const [isOpen, setOpen] = useState(false);
  const waits = useRef(0);
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) {
        return;
      }
      const isSecond = event.timeStamp - waits.current < SECOND_KEY_MS;
      const page = isSecond ? PAGES.find((each) => each.key === event.key) : undefined;
      waits.current = event.key === "g" && !isSecond ? event.timeStamp : 0;
      if (page !== undefined) {
        event.preventDefault();
        navigate(hrefOf(page.id));
      } else if (event.key === "/") {
        event.preventDefault();
        setOpen(true);
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
  return isOpen ? <Jump close={() => setOpen(false)} /> : null;
}

/** Something that letters are typed into has the focus, or a dialog is open. */
function isTyping(target: EventTarget | null): boolean {
  const isField = target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]") !== null;
  return isField || document.querySelector("dialog[open]") !== null;
}

function Jump({ close }: { close: () => void }) {
  useTopics("deployments", "agents");
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const places = fitting(placesOf(PAGES, store.deployments.value, store.agents.value), typed);
  const chosen = Math.min(at, places.length - 1);
  const go = (href: string | undefined): void => {
    if (href !== undefined) {
      close();
      navigate(href);
    }
  };
  return (
    <Dialog title="Go to" close={close} size="small" atOnce>
      <div class="palette">
        <input
          class="input"
          type="text"
          role="combobox"
          aria-label="A page, a deployment, an agent, or the id of a request"
          aria-expanded="true"
          aria-controls="palette-places"
          aria-activedescendant={places.length > 0 ? `palette-${chosen}` : undefined}
          autoComplete="off"
          spellcheck={false}
          maxLength={200}
          value={typed}
          autoFocus
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            setAt(0);
          }}
          onKeyDown={(event) => {
            const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
            if (step !== 0 && places.length > 0) {
              event.preventDefault();
              setAt((chosen + step + places.length) % places.length);
            } else if (event.key === "Enter") {
              event.preventDefault();
              go(places[chosen]?.href);
            }
          }}
        />
        <ul id="palette-places" role="listbox" aria-label="Places">
          {places.map((place, index) => (
            <li
              key={place.href + place.title}
              id={`palette-${index}`}
              role="option"
              aria-selected={index === chosen}
              onPointerMove={() => setAt(index)}
              onClick={() => go(place.href)}
            >
              <span class="truncate">{place.title}</span>
              <kbd>{place.hint}</kbd>
            </li>
          ))}
        </ul>
        {places.length === 0 ? <p class="muted">There is no such place.</p> : null}
      </div>
    </Dialog>
  );
}
