/** The conversation of this tab, through a reload of the page: in the tab's own storage, and nowhere else. */

import { effect } from "@preact/signals";
import { whenAnotherSignsIn } from "../../core/owner";
import { isBusy, restore, settings, sides } from "./chat";
import { asFile, fromFile } from "./conversation_file";

const KEPT_AS = "paddler-trio-conversation";
/** Browsers give a page about five million characters. */
const MOST_CHARS = 2_000_000;

whenAnotherSignsIn(forget);

/** Take up what was kept, and keep what comes; the function that ends it. */
export function keepConversation(): () => void {
  takeUp();
  return effect(() => {
    const conversation = sides[0].conversation.value;
    const text = conversation.turns.size === 0 ? null : asFile(conversation, settings.value);
    if (isBusy.value) {
      return;
    }
    if (text === null || text.length > MOST_CHARS) {
      forget();
      return;
    }
    try {
      window.sessionStorage.setItem(KEPT_AS, text);
    } catch {
      forget(); // full or forbidden: the conversation lasts as long as the page
    }
  });
}

function takeUp(): void {
  if (sides[0].conversation.peek().turns.size > 0) {
    return; // the page was left for another one, and is back
  }
  try {
    const text = window.sessionStorage.getItem(KEPT_AS);
    if (text !== null) {
      const { conversation, settings: kept } = fromFile(text);
      restore(conversation, kept);
    }
  } catch {
    forget(); // of another version
  }
}

function forget(): void {
  try {
    window.sessionStorage.removeItem(KEPT_AS);
  } catch {
    // It is forbidden, so there is nothing.
  }
}
