/** Where in a state the balancer found what it refuses: the path at the end of its sentence. */

import { fieldOf } from "./values";

export interface Refusal {
  /** The sentence without the path. */
  text: string;
  /** Place in the list of deployments. */
  deployment: number | null;
  /** Path of the field in the form. */
  field: string | null;
}

const PATH = / @ \$((?:\.[A-Za-z_]\w*|\[\d+\]|\['[^']*'\])*)$/;
const STEP = /\.([A-Za-z_]\w*)|\[(\d+)\]|\['([^']*)'\]/g;
const PREFIX = "Json deserialize error: ";

/** `… must be 1 to 4096 @ $.state.deployments[0].slots`: the field `slots` of the first deployment. */
export function refusalOf(message: string): Refusal {
  const found = PATH.exec(message);
  let text = found ? message.slice(0, found.index) : message;
  text = text.startsWith(PREFIX) ? text.slice(PREFIX.length) : text;
  text = text.charAt(0).toUpperCase() + text.slice(1);
  const steps = [...(found?.[1] ?? "").matchAll(STEP)].map(([, name, place, quoted]) =>
    place === undefined ? (name ?? quoted ?? "") : Number(place),
  );
  const [state, deployments, place, ...rest] = steps;
  if (state !== "state" || deployments !== "deployments" || typeof place !== "number") {
    return { text, deployment: null, field: null };
  }
  return { text, deployment: place, field: fieldOf(rest)?.path ?? (rest[0] === "name" ? "name" : null) };
}
