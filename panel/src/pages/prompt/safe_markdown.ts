/**
 * Markdown of a model as DOM that can do nothing.
 *
 * Model output is untrusted. HTML in it is shown as text, pictures become links, and what is left goes through
 * DOMPurify with a short list of elements. Links open a new tab without access to this one.
 */

import DOMPurify from "dompurify";
import { type Tokens, Marked } from "marked";

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html({ text }: Tokens.HTML | Tokens.Tag): string {
      return /^<br\s*\/?>$/i.test(text.trim()) ? "<br>" : escaped(text);
    },
    image({ href, text }: Tokens.Image): string {
      // nothing is fetched that a model names
      const label = `picture: ${text || href}`;
      return `<a href="${escaped(href)}">${escaped(label)}</a>`;
    },
    checkbox({ checked }: Tokens.Checkbox): string {
      return checked ? "☑ " : "☐ ";
    },
  },
});

/** One block as sanitised nodes; `definitions` are those of the links in it. */
export function rendered(raw: string, definitions: string): DocumentFragment {
  const fragment = purifier().sanitize(htmlOf(raw, definitions), {
    ALLOWED_TAGS: [
      "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li", "ol",
      "p", "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
    ],
    ALLOWED_ATTR: ["href", "class", "start", "align"],
    ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const code of fragment.querySelectorAll("pre > code")) {
    withHeader(code);
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "md-table";
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

// ------------------------------------------------------------------------------------- inside

/** Blocks that are nested deeper than the parser's stack are shown as they are. */
function htmlOf(raw: string, definitions: string): string {
  try {
    return marked.parse(definitions === "" ? raw : `${raw}\n\n${definitions}`, { async: false });
  } catch (error) {
    if (error instanceof RangeError) {
      return `<pre>${escaped(raw)}</pre>`;
    }
    throw error;
  }
}

let known: typeof DOMPurify | undefined;

/** An instance of our own, so that no other user of the library shares the hooks. */
function purifier(): typeof DOMPurify {
  if (known === undefined) {
    known = DOMPurify(window);
    known.addHook("afterSanitizeAttributes", (node) => {
      if (node.tagName === "A") {
        if (node.hasAttribute("href")) {
          node.setAttribute("target", "_blank");
          node.setAttribute("rel", "noopener noreferrer nofollow");
          node.setAttribute("title", node.getAttribute("href") ?? "");
        }
      }
      if (node.hasAttribute("class") && !(node.tagName === "CODE" && /^language-[\w+#.-]{1,32}$/.test(node.className))) {
        node.removeAttribute("class");
      }
    });
  }
  return known;
}

/** A code block gets a line with its language and a button that copies it. */
function withHeader(code: Element): void {
  const block = code.parentElement;
  if (block === null) {
    return;
  }
  const frame = document.createElement("div");
  frame.className = "md-code";
  const header = document.createElement("div");
  header.className = "md-code-head";
  const language = document.createElement("span");
  language.textContent = /language-(.+)/.exec(code.className)?.[1] ?? "text";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "md-copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy the code (${language.textContent})`);
  button.addEventListener("click", () => {
    void copy(code.textContent ?? "", button);
  });
  header.append(language, button);
  block.replaceWith(frame);
  block.tabIndex = 0; // it scrolls sideways
  frame.append(header, block);
}

async function copy(text: string, button: HTMLButtonElement): Promise<void> {
  const done = await copyText(text);
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  setTimeout(() => {
    button.textContent = "Copy";
  }, 2000);
}

/** Whether it is in the clipboard now; over plain HTTP only the old way works. */
export async function copyText(text: string): Promise<boolean> {
  if (navigator.clipboard !== undefined) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      if (!(error instanceof DOMException)) {
        throw error;
      }
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "off-screen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

function escaped(text: string): string {
  return text
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;")
    .replaceAll("'", "&#39;");
}
