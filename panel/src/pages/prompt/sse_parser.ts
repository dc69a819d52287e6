/** Server-sent events of an answer: their data, and the comments that say why it waits. Pure. */

/** One complete line block: the data of an event, or the text of a comment. */
export type SseItem =
  | { readonly kind: "data"; readonly data: string }
  | { readonly kind: "comment"; readonly text: string };

/** Characters of one event; an answer that sends more without a line break is not ours. */
export const MAX_EVENT_CHARS = 4_194_304;

/** A stream of text in pieces of any size; `feed` returns what became complete with the piece. */
export class SseParser {
  private rest = "";
  private data: string[] = [];
  private dataChars = 0;

  /** Throws an Error for an event of more than `MAX_EVENT_CHARS`. */
  feed(piece: string): SseItem[] {
    const items: SseItem[] = [];
    const text = this.rest + piece;
    let start = 0;
    for (;;) {
      const end = text.indexOf("\n", start);
      if (end < 0) break;
      const line = text.slice(start, text[end - 1] === "\r" && end > start ? end - 1 : end);
      start = end + 1;
      this.line(line, items);
    }
    this.rest = text.slice(start);
    if (this.rest.length + this.dataChars > MAX_EVENT_CHARS) {
      throw new Error(`the stream sent an event of more than ${MAX_EVENT_CHARS} characters`);
    }
    return items;
  }

  private line(line: string, items: SseItem[]): void {
    if (line === "") {
      if (this.data.length > 0) items.push({ kind: "data", data: this.data.join("\n") });
      this.data = [];
      this.dataChars = 0;
    } else if (line.startsWith(":")) {
      items.push({ kind: "comment", text: line.slice(1).trim() });
    } else if (line.startsWith("data:")) {
      const data = line.slice(line[5] === " " ? 6 : 5);
      this.data.push(data);
      this.dataChars += data.length;
    }
  }
}
