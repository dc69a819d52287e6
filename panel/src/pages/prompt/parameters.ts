/** The sampling parameters of a request: names, ranges and help as the balancer has them. Pure. */

export interface Parameter {
  /** The field of the request. */
  readonly name: string;
  readonly label: string;
  readonly help: string;
  readonly least: number;
  readonly most: number;
  readonly isWhole: boolean;
  readonly group: "usual" | "sampling" | "repetition";
  /** OpenAI's own client knows it; others go into its `extra_body`. */
  readonly isOpenAi: boolean;
}

const MAX_INT32 = 2 ** 31 - 1;

function number(
  name: string,
  label: string,
  least: number,
  most: number,
  group: Parameter["group"],
  help: string,
  isOpenAi = false,
): Parameter {
  return { name, label, help, least, most, isWhole: false, group, isOpenAi };
}

function whole(
  name: string,
  label: string,
  least: number,
  most: number,
  group: Parameter["group"],
  help: string,
  isOpenAi = false,
): Parameter {
  return { name, label, help, least, most, isWhole: true, group, isOpenAi };
}

export const PARAMETERS: readonly Parameter[] = [
  whole("max_tokens", "Max tokens", 1, MAX_INT32, "usual", "Tokens of the answer, reasoning included.", true),
  number("temperature", "Temperature", 0, 2, "usual", "0 always takes the most likely token.", true),
  whole("seed", "Seed", 0, Number.MAX_SAFE_INTEGER, "usual", "Equal seeds sample equally.", true),
  number("top_p", "Top p", 0, 1, "usual", "The most likely tokens that have this share.", true),
  whole("top_k", "Top k", 0, MAX_INT32, "sampling", "So many most likely tokens; 0 for all."),
  number("min_p", "Min p", 0, 1, "sampling", "Drops tokens less likely than this share of the likeliest."),
  number("typical_p", "Typical p", 0, 1, "sampling", "Locally typical sampling; 1 is off."),
  number("top_n_sigma", "Top n sigma", -1, 1000, "sampling", "Logits within so many deviations; -1 is off."),
  number("dynatemp_range", "Dynamic temperature range", 0, 100, "sampling", "The temperature moves by so much with entropy."),
  number("dynatemp_exponent", "Dynamic temperature exponent", 0, 100, "sampling", "How entropy becomes temperature."),
  number("xtc_probability", "XTC probability", 0, 1, "sampling", "How often the likeliest tokens are dropped."),
  number("xtc_threshold", "XTC threshold", 0, 1, "sampling", "What counts as likely."),
  whole("mirostat", "Mirostat", 0, 2, "sampling", "0 off, 1 or 2 for that version."),
  number("mirostat_tau", "Mirostat tau", 0, 100, "sampling", "The surprise that it aims at."),
  number("mirostat_eta", "Mirostat eta", 0, 1, "sampling", "How fast it learns."),
  number("repeat_penalty", "Repeat penalty", 0.01, 100, "repetition", "Divides the logits of tokens that occurred; 1 is off."),
  whole("repeat_last_n", "Repeat last n", -1, MAX_INT32, "repetition", "How far penalties look back; -1 for the whole context."),
  number("frequency_penalty", "Frequency penalty", -2, 2, "repetition", "Taken off a logit for each occurrence.", true),
  number("presence_penalty", "Presence penalty", -2, 2, "repetition", "Taken off the logit of tokens that occurred.", true),
  number("dry_multiplier", "DRY multiplier", 0, 100, "repetition", "Strength of the DRY penalty; 0 is off."),
  number("dry_base", "DRY base", 1, 100, "repetition", "How the DRY penalty grows."),
  whole("dry_allowed_length", "DRY allowed length", 0, MAX_INT32, "repetition", "Repetitions that DRY leaves alone."),
  whole("dry_penalty_last_n", "DRY last n", -1, MAX_INT32, "repetition", "How far DRY looks back; -1 for the whole context."),
];

export const MAX_STOP_TEXTS = 32;
export const MAX_STOP_CHARS = 1024;

/** The range as a short text, such as `0 to 2`. */
export function rangeOf(parameter: Parameter): string {
  if (parameter.most === MAX_INT32 || parameter.most === Number.MAX_SAFE_INTEGER) {
    return `${parameter.least} or more`;
  }
  return `${parameter.least} to ${parameter.most}`;
}

/** The number that `text` writes, null for an empty one; a sentence for what is wrong with it. */
export function readParameter(
  parameter: Parameter,
  text: string,
): { value: number | null; problem: string | null } {
  const trimmed = text.trim();
  if (trimmed === "") return { value: null, problem: null };
  const value = Number(trimmed);
  const kind = parameter.isWhole ? "a whole number" : "a number";
  const isRight =
    /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(trimmed) &&
    value >= parameter.least &&
    value <= parameter.most &&
    (!parameter.isWhole || Number.isSafeInteger(value));
  if (isRight) return { value, problem: null };
  const problem = `${parameter.name} is ${trimmed.slice(0, 40)}, must be ${kind}, ${rangeOf(parameter)}`;
  return { value: null, problem };
}

/** One stop text a line; `\n` in a line stands for a line break. */
export function readStops(text: string): { value: string[]; problem: string | null } {
  const value = text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replaceAll("\\n", "\n"));
  if (value.length > MAX_STOP_TEXTS) {
    return { value: [], problem: `stop has ${value.length} texts, the limit is ${MAX_STOP_TEXTS}` };
  }
  const long = value.find((each) => each.length > MAX_STOP_CHARS);
  if (long !== undefined) {
    return { value: [], problem: `a stop text has ${long.length} characters, the limit is ${MAX_STOP_CHARS}` };
  }
  return { value, problem: null };
}
