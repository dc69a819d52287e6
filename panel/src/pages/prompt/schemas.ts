/**
 * JSON Schemas that a person types: for the arguments of tools, and for the answer. What is
 * checked here is what shows early where a text is wrong; the balancer checks all of it. Pure.
 */

import { isObject } from "./answer";

/** The balancer's `max_schema_bytes` and `max_tools`. */
export const MAX_SCHEMA_BYTES = 262_144;
export const MAX_TOOLS = 256;
const MAX_DEPTH = 64;

export interface Tool {
  readonly name: string;
  readonly description: string;
  /** The text of the schema as it was typed; empty for no arguments. */
  readonly schema: string;
}

export const EXAMPLE_TOOL: Tool = {
  name: "get_weather",
  description: "The weather of a city now",
  schema: JSON.stringify(
    {
      type: "object",
      properties: {
        city: { type: "string", description: "Name of the city" },
        unit: { enum: ["celsius", "fahrenheit"] },
      },
      required: ["city"],
    },
    null,
    2,
  ),
};

export interface SchemaReading {
  readonly schema: Record<string, unknown> | null;
  readonly problem: string | null;
}

/** The schema that `text` writes, or a sentence with line and column, or with the path. */
export function readSchema(text: string): SchemaReading {
  const bytes = new TextEncoder().encode(text).length;
  if (bytes > MAX_SCHEMA_BYTES) {
    return wrong(`the schema has ${bytes} bytes, the limit max_schema_bytes is ${MAX_SCHEMA_BYTES}`);
  }
  const { value, problem } = readJson(text);
  if (problem !== null) return wrong(problem);
  if (!isObject(value)) return wrong("the schema must be a JSON object, such as {\"type\": \"object\"}");
  const fault = faultIn(value, "$", 0);
  return fault === null ? { schema: value, problem: null } : wrong(fault);
}

/** JSON with a place for what is wrong: `line 2, column 14: …`. */
export function readJson(text: string): { value: unknown; problem: string | null } {
  try {
    return { value: JSON.parse(text) as unknown, problem: null };
  } catch (error) {
    const at = faultAt(text);
    const before = text.slice(0, at);
    const line = before.split("\n").length;
    const column = at - before.lastIndexOf("\n");
    const what = at >= text.length ? "the text ends too early" : `unexpected ${shown(text[at])}`;
    void error; // its words differ from browser to browser; the place is what helps
    return { value: null, problem: `line ${line}, column ${column}: ${what}` };
  }
}

/** What is wrong with a list of tools, by the index of the tool. */
export function toolProblems(tools: readonly Tool[]): Map<number, string> {
  const problems = new Map<number, string>();
  const seen = new Set<string>();
  tools.forEach((tool, index) => {
    const name = tool.name.trim();
    if (index >= MAX_TOOLS) {
      problems.set(index, `there are ${tools.length} tools, the limit max_tools is ${MAX_TOOLS}`);
    } else if (!/^[A-Za-z0-9_.-]{1,64}$/.test(name)) {
      const rule = "must be 1 to 64 of letters, digits, _, . and -";
      problems.set(index, name === "" ? `the name is empty, ${rule}` : `name is ${name.slice(0, 80)}, ${rule}`);
    } else if (seen.has(name)) {
      problems.set(index, `name ${name} is given twice`);
    } else if (tool.schema.trim() !== "") {
      const { problem } = readSchema(tool.schema);
      if (problem !== null) problems.set(index, problem);
    }
    seen.add(name);
  });
  return problems;
}

/** The tools as a request has them; only those without a problem. */
export function toolsOf(tools: readonly Tool[]): Record<string, unknown>[] {
  const problems = toolProblems(tools);
  return tools
    .filter((_, index) => !problems.has(index))
    .map((tool) => ({
      type: "function",
      function: {
        name: tool.name.trim(),
        ...(tool.description.trim() === "" ? {} : { description: tool.description.trim() }),
        ...(tool.schema.trim() === "" ? {} : { parameters: readSchema(tool.schema).schema }),
      },
    }));
}

// ------------------------------------------------------------------------------------- inside

const TYPES = ["string", "number", "integer", "boolean", "object", "array", "null"];

function wrong(problem: string): SchemaReading {
  return { schema: null, problem };
}

function shown(character: string | undefined): string {
  if (character === undefined) return "end";
  return character === "\n" ? "line break" : `“${character}”`;
}

/** What a JSON Schema at `path` gets wrong, or null. */
function faultIn(schema: unknown, path: string, depth: number): string | null {
  if (typeof schema === "boolean") return null;
  if (!isObject(schema)) return `${path} is ${kindOf(schema)}, must be a schema`;
  if (depth > MAX_DEPTH) return `${path} is nested deeper than max_nesting (${MAX_DEPTH})`;
  const types = Array.isArray(schema.type) ? schema.type : schema.type === undefined ? [] : [schema.type];
  const odd = types.find((type) => typeof type !== "string" || !TYPES.includes(type));
  if (odd !== undefined) return `${path}.type is ${JSON.stringify(odd)}, must be one of ${TYPES.join(", ")}`;
  if (schema.enum !== undefined && (!Array.isArray(schema.enum) || schema.enum.length === 0)) {
    return `${path}.enum must be a list with at least one value`;
  }
  if (schema.required !== undefined) {
    const isList = Array.isArray(schema.required) && schema.required.every((each) => typeof each === "string");
    if (!isList) return `${path}.required must be a list of names`;
  }
  return (
    faultInEach(schema.properties, `${path}.properties`, depth, "an object of schemas") ??
    faultInEach(schema.$defs, `${path}.$defs`, depth, "an object of schemas") ??
    faultInList(schema, path, depth) ??
    (isObject(schema.items) ? faultIn(schema.items, `${path}.items`, depth + 1) : null)
  );
}

function faultInEach(value: unknown, path: string, depth: number, what: string): string | null {
  if (value === undefined) return null;
  if (!isObject(value)) return `${path} is ${kindOf(value)}, must be ${what}`;
  for (const [name, each] of Object.entries(value)) {
    const fault = faultIn(each, `${path}.${name}`, depth + 1);
    if (fault !== null) return fault;
  }
  return null;
}

function faultInList(schema: Record<string, unknown>, path: string, depth: number): string | null {
  for (const name of ["anyOf", "oneOf", "allOf"]) {
    const list = schema[name];
    if (list === undefined) continue;
    if (!Array.isArray(list) || list.length === 0) return `${path}.${name} must be a list of schemas`;
    for (const [index, each] of list.entries()) {
      const fault = faultIn(each, `${path}.${name}[${index}]`, depth + 1);
      if (fault !== null) return fault;
    }
  }
  return null;
}

function kindOf(value: unknown): string {
  if (value === null) return "null";
  return Array.isArray(value) ? "a list" : `a ${typeof value}`;
}

/** The index of the first character that cannot be part of a JSON text. */
function faultAt(text: string): number {
  const scanner = new Scanner(text);
  scanner.value(0);
  if (!scanner.hasFailed) {
    scanner.blanks();
    return scanner.at;
  }
  return scanner.at;
}

/** Reads JSON only as far as it is right. */
class Scanner {
  at = 0;
  hasFailed = false;

  constructor(private readonly text: string) {}

  blanks(): void {
    while (" \t\r\n".includes(this.text[this.at] ?? "x")) this.at += 1;
  }

  value(depth: number): void {
    this.blanks();
    const first = this.text[this.at];
    if (depth > 512) this.fail();
    else if (first === "{") this.members(depth, "}", true);
    else if (first === "[") this.members(depth, "]", false);
    else if (first === '"') this.string();
    else this.pattern(/(true|false|null|-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?)/y);
  }

  private members(depth: number, end: string, named: boolean): void {
    this.at += 1;
    this.blanks();
    if (this.text[this.at] === end) {
      this.at += 1;
      return;
    }
    while (!this.hasFailed) {
      if (named) {
        this.blanks();
        if (this.text[this.at] !== '"') return this.fail();
        this.string();
        if (this.hasFailed) return;
        this.blanks();
        if (this.text[this.at] !== ":") return this.fail();
        this.at += 1;
      }
      this.value(depth + 1);
      if (this.hasFailed) return;
      this.blanks();
      const next = this.text[this.at];
      if (next !== "," && next !== end) return this.fail();
      this.at += 1;
      if (next === end) return;
    }
  }

  private string(): void {
    const start = this.at;
    this.pattern(/"([^"\\\u0000-\u001f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
    if (this.hasFailed) {
      const good = /"([^"\\\u0000-\u001f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*/y;
      good.lastIndex = start;
      this.at = start + (good.exec(this.text)?.[0].length ?? 0);
    }
  }

  private pattern(pattern: RegExp): void {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.text);
    if (match === null) this.fail();
    else this.at += match[0].length;
  }

  private fail(): void {
    this.hasFailed = true;
  }
}
