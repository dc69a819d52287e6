/**
 * A growing text of a model in Markdown blocks, with bounds for what one of them may cost. Pure.
 *
 * Some texts take a Markdown parser quadratic time, or more stack than there is. So blocks are found without looking
 * inside them, a long one is shown as it is, and a text that grows is only looked at from its last blocks on.
 */

import { Lexer, type Token } from "marked";

/** Longer texts are one plain block. */
export const MAX_MARKDOWN_CHARS = 400_000;
/** A longer paragraph, list or table is plain; code may be longer, since nothing is looked for in it. */
export const MAX_BLOCK_CHARS = 8_000;
/** Definitions of link addresses that every block gets. */
const MAX_DEFINITION_CHARS = 4_000;
/** Blocks that the next piece of text may still change: the last, and the one that it may turn out to belong to. */
const UNSETTLED = 2;

export interface MarkdownBlock {
  readonly raw: string;
  readonly isPlain: boolean;
}

export interface MarkdownText {
  readonly text: string;
  readonly blocks: readonly MarkdownBlock[];
  /** Where each block begins. */
  readonly starts: readonly number[];
  /** The definitions of links so far. */
  readonly definitions: string;
}

export const NO_TEXT: MarkdownText = { text: "", blocks: [], starts: [], definitions: "" };

/** The blocks of `text`; those of the text before are kept as far as it only has grown. */
export function grown(before: MarkdownText, text: string): MarkdownText {
  if (text === before.text) {
    return before;
  }
  if (text.length > MAX_MARKDOWN_CHARS) {
    return { text, blocks: [{ raw: text, isPlain: true }], starts: [0], definitions: "" };
  }
  const kept = text.startsWith(before.text) ? Math.max(0, before.blocks.length - UNSETTLED) : 0;
  const from = kept === 0 ? 0 : (before.starts[kept] ?? 0);
  const blocks = before.blocks.slice(0, kept);
  const starts = before.starts.slice(0, kept);
  let definitions = kept === 0 ? "" : before.definitions;
  let at = from;
  for (const token of tokensOf(text.slice(from))) {
    if (token.type === "def") {
      definitions = withDefinition(definitions, token.raw);
    } else if (token.type !== "space") {
      const isPlain = token.type === "plain" || (token.type !== "code" && token.raw.length > MAX_BLOCK_CHARS);
      blocks.push({ raw: token.raw, isPlain });
      starts.push(at);
    }
    at += token.raw.length;
  }
  return { text, blocks, starts, definitions };
}

// ------------------------------------------------------------------------------------- inside

/** Blocks whose inside was not looked at, as they stand in the text. */
function tokensOf(text: string): Pick<Token, "type" | "raw">[] {
  try {
    const tokens = new Lexer({ gfm: true }).blockTokens(text, []);
    const length = tokens.reduce((sum, token) => sum + token.raw.length, 0);
    return length === text.length ? tokens : [{ type: "plain", raw: text }];
  } catch (error) {
    if (error instanceof RangeError) {
      return [{ type: "plain", raw: text }]; // nested deeper than the stack
    }
    throw error;
  }
}

function withDefinition(definitions: string, raw: string): string {
  const all = `${definitions}\n${raw.trim()}`;
  return definitions.includes(raw.trim()) || all.length > MAX_DEFINITION_CHARS ? definitions : all;
}
