/** Server-sent events out of chunks of text. */

export interface ServerEvent {
  id: string | undefined;
  data: string;
}

/** What one event may have; a balancer with hundreds of agents sends a few MB at first. */
const MAX_EVENT_CHARS = 128 * 1024 * 1024;

export class EventStreamParser {
  #rest: string[] = [];
  #data: string[] = [];
  #id: string | undefined;
  #size = 0;

  /** The events that this chunk completes. Raises RangeError for one that never ends. */
  feed(chunk: string): ServerEvent[] {
    const found: ServerEvent[] = [];
    this.#size += chunk.length;
    if (this.#size > MAX_EVENT_CHARS) {
      throw new RangeError(`an event of more than ${MAX_EVENT_CHARS} characters`);
    }
    let from = 0;
    for (;;) {
      const end = chunk.indexOf("\n", from);
      if (end < 0) {
        break;
      }
      this.#rest.push(chunk.slice(from, end));
      const line = this.#rest.join("");
      this.#rest = [];
      from = end + 1;
      const event = this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
      if (event !== undefined) {
        found.push(event);
      }
    }
    if (from < chunk.length) {
      this.#rest.push(chunk.slice(from));
    }
    return found;
  }

  #line(line: string): ServerEvent | undefined {
    if (line === "") {
      const event = this.#data.length ? { id: this.#id, data: this.#data.join("\n") } : undefined;
      this.#data = [];
      this.#size = 0;
      return event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      this.#size = this.#data.length ? this.#size : 0;
      return undefined; // a comment
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") {
      this.#data.push(value);
    } else if (field === "id" && !value.includes("\0")) {
      this.#id = value;
    }
    return undefined;
  }
}
