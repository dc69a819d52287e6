/** What a new API key must be like, as the balancer has it. Pure. */

export const SCOPES = ["inference", "management"] as const;
export type Scope = (typeof SCOPES)[number];

export const SCOPE_HELP: Readonly<Record<Scope, string>> = {
  inference: "Asks for answers: the inference port, and the Prompt page.",
  management: "Operates the fleet: this panel, the CLI, and agents that join.",
};

const MAX_DEPLOYMENTS = 64;

/** The limits of a key: names as in a key file, what people read, and the greatest value. */
export const LIMITS = [
  { name: "requests_per_minute", label: "Requests per minute", most: 1_000_000 },
  { name: "max_concurrent", label: "Requests at once", most: 100_000 },
  { name: "tokens_per_day", label: "Tokens per day", most: 1_000_000_000_000 },
  { name: "tokens_per_month", label: "Tokens per month", most: 10_000_000_000_000 },
] as const;
export type LimitName = (typeof LIMITS)[number]["name"];

export const LIFETIMES = [
  { value: "", label: "until it is revoked" },
  { value: "86400", label: "a day" },
  { value: "604800", label: "a week" },
  { value: "2592000", label: "30 days" },
  { value: "31536000", label: "365 days" },
] as const;

export interface KeyForm {
  readonly name: string;
  readonly scopes: readonly Scope[];
  readonly deployments: string;
  /** Seconds; empty for no end. */
  readonly lifetime: string;
  /** As typed; empty for no limit. */
  readonly limits: Readonly<Record<LimitName, string>>;
}

export const EMPTY_FORM: KeyForm = {
  name: "",
  scopes: ["inference"],
  deployments: "",
  lifetime: "",
  limits: { requests_per_minute: "", max_concurrent: "", tokens_per_day: "", tokens_per_month: "" },
};

/** What is sent to make a key. */
export interface KeyOrder extends Record<LimitName, number | null> {
  readonly name: string;
  readonly scopes: readonly Scope[];
  readonly deployments: readonly string[];
  readonly ttl_s?: number;
}

/** The body of the request, or sentences by field. */
export function readKeyForm(
  form: KeyForm,
  names: ReadonlySet<string>,
): { body: KeyOrder; problems: Map<string, string> } {
  const problems = new Map<string, string>();
  const name = form.name.trim();
  if (!/^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$/.test(name)) {
    problems.set(
      "name",
      `${name === "" ? "The name is empty" : `The name is ${name.slice(0, 80)}`}; it must be 1 to 64 of letters, ` +
        "digits and . _ @ -, beginning with a letter or digit.",
    );
  } else if (names.has(name)) {
    problems.set("name", `There is a key of the name ${name}; revoke it first, or choose another name.`);
  }
  if (form.scopes.length === 0) {
    problems.set("scopes", "Choose at least one scope; a key without any opens nothing.");
  }
  const deployments = [...new Set(form.deployments.split(/[\s,]+/).filter(Boolean))];
  const odd = deployments.find((each) => !/^[a-z0-9._-]{1,63}$/.test(each));
  if (odd !== undefined) {
    problems.set("deployments", `${odd.slice(0, 80)} is no deployment: 1 to 63 of a-z, 0-9, ., _ and -.`);
  } else if (deployments.length > MAX_DEPLOYMENTS) {
    problems.set("deployments", `There are ${deployments.length}; the limit is ${MAX_DEPLOYMENTS}.`);
  }
  const limits: Record<LimitName, number | null> = { requests_per_minute: null, max_concurrent: null, tokens_per_day: null, tokens_per_month: null };
  for (const limit of LIMITS) {
    const text = form.limits[limit.name].trim();
    if (text === "") {
      continue;
    }
    const value = Number(text);
    if (!/^\d+$/.test(text) || value < 1 || value > limit.most) {
      problems.set(limit.name, `It is ${text.slice(0, 80)}; it must be a whole number from 1 to ${limit.most.toLocaleString("en")}.`);
    } else {
      limits[limit.name] = value;
    }
  }
  const lifetime = form.lifetime === "" ? {} : { ttl_s: Number(form.lifetime) };
  return { body: { name, scopes: form.scopes, deployments, ...lifetime, ...limits }, problems };
}
