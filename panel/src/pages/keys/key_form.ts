/** What a new API key must be like, as the balancer has it. Pure. */

export const SCOPES = ["inference", "management"] as const;
export type Scope = (typeof SCOPES)[number];

export const SCOPE_HELP: Readonly<Record<Scope, string>> = {
  inference: "Asks for answers: the inference port, and the Prompt page.",
  management: "Operates the fleet: this panel, the CLI, and agents that join.",
};

const MAX_DEPLOYMENTS = 64;

export interface KeyForm {
  readonly name: string;
  readonly scopes: readonly Scope[];
  readonly deployments: string;
}

/** The body of the request, or sentences by field. */
export function readKeyForm(
  form: KeyForm,
  names: ReadonlySet<string>,
): { body: { name: string; scopes: readonly Scope[]; deployments: string[] }; problems: Map<string, string> } {
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
  return { body: { name, scopes: form.scopes, deployments }, problems };
}
