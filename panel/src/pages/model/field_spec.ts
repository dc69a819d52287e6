/** What is known of one field of a deployment. */

import type { ChangeClass } from "./spec";

export type Kind =
  | "integer"
  | "number"
  | "flag"
  | "choice"
  /** yes, no, or as the agent was started */
  | "switch"
  | "text"
  /** one a line */
  | "lines"
  | "parts"
  /** null: the template's own; an empty text means none */
  | "marker"
  | "replicas"
  /** a list of models over the same weights; as text it is what `presets.ts` makes of it */
  | "presets"
  /** one a line: name, scale and source */
  | "adapters"
  | "source"
  | "template";

export interface FieldSpec {
  /** Of the member, from the deployment on: `parameters.context_size`. */
  path: string;
  label: string;
  help: string;
  kind: Kind;
  unit?: string;
  /** What the balancer takes. */
  low?: number;
  high?: number;
  /** What makes sense; beyond it the field only warns. */
  usual?: readonly [low: number, high: number];
  options?: readonly string[];
  /** It may be left empty, and is then not sent; the words say what holds then. */
  empty?: string;
  cost: ChangeClass;
}
