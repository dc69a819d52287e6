/** The JSON that the balancer sends. Times end in `_ms` and are its monotonic clock, see core/time.ts. */

export type Topic =
  | "balancer"
  | "agents"
  | "deployments"
  | "requests"
  | "rollouts"
  | "metrics"
  | "logs"
  | "problems"
  | "gone";

/** One event of `GET api/v2/events`. */
export interface FeedEvent {
  epoch: string;
  seq: number;
  full: boolean;
  now_ms: number;
  time: string;
  set: Partial<Record<Topic, Record<string, unknown>>>;
  gone: Partial<Record<Topic, string[]>>;
}

export interface Balancer {
  version: string;
  started: string;
  draining: boolean;
  addresses: Record<"inference" | "management" | "openai" | "ollama" | "panel" | "statsd", string[]>;
  buffer: { waiting: number; limit: number; timeout_ms: number };
  slots: { busy: number; total: number };
  loop_lag_ms: number;
  capture: boolean;
  revision: number;
}

export type StateApplication =
  | "Fresh"
  | "AttemptedAndRetrying"
  | "Stuck"
  | "AttemptedAndNotAppliable"
  | "Applied";

/** `{"ModelCannotBeLoaded": {"model_path": …}}`, one name and what it carries. */
export type AgentIssue = Record<string, Record<string, unknown>>;

export interface Download {
  source?: string;
  phase: string;
  file_index: number;
  file_count: number;
  bytes_per_s: number | null;
  remaining_s: number | null;
}

export interface DeviceMemory {
  device: string;
  predicted: number | null;
  actual: number | null;
  /** Of what is taken, as llama.cpp allocated it; absent where it is unknown. */
  weights?: number;
  kv?: number;
  compute?: number;
  /** Of the device, when the model had been loaded. */
  free?: number;
}

export interface AgentMemory {
  context_size: number;
  /** The most tokens that one slot may have. */
  slot_context?: number | null;
  n_gpu_layers: number;
  chosen: string[];
  devices: DeviceMemory[];
}

/** What an engine did since its model was loaded; counts are tokens unless named otherwise. */
export interface EngineStats {
  passes: number;
  prompt_tokens: number;
  cached_tokens: number;
  drawn_tokens: number;
  drafted_tokens: number;
  accepted_tokens: number;
  preemptions: number;
  busy_ms: number;
  draw_ms: number;
  last_sequences: number;
  last_tokens: number;
  last_ms: number;
  running: number;
  waiting: number;
  cells_total: number;
  cells_used: number;
  cells_resident: number;
  stored_tokens: number;
  stored_bytes: number;
  embedding_documents: number;
  embedding_tokens: number;
  embedding_passes: number;
  embedding_ms: number;
}

/** q: in the engine's queue, p: prefill, d: decode, s: stopping. */
export type LanePhase = "q" | "p" | "d" | "s";
/** Request key, phase, since when; the place in the list is no lane: see `Placement.lane`. */
export type Lane = [request: number, phase: LanePhase, since_ms: number];

export interface AgentRates {
  prompt_tokens_per_s: number;
  generated_tokens_per_s: number;
  /** 0..1, null where no prompt was computed. */
  cached_ratio: number | null;
}

/** What is true of something, as the balancer says it: no page derives it by itself. */
export interface Truth extends StateWords {
  sentence: string;
  /** What clients notice of it. */
  follows: string;
  todo: string;
}

/** One thing that is wrong, anywhere. */
export interface ProblemEntry {
  id: string;
  subject: string;
  severity: Severity;
  sentence: string;
  follows: string;
  todo: string;
  page: string;
}

/** An agent that was here. */
export interface GoneAgent {
  name: string;
  deployments: string[];
  slots: number;
  /** RFC 3339. */
  since: string;
  last_words: string;
  state: Truth;
}

export interface Agent {
  key: number;
  label: string;
  id: string;
  name: string | null;
  host: string;
  deployment: string;
  labels: Record<string, string>;
  protocol: "paddler-trio.1" | "paddler-4.1";
  is_accepting: boolean;
  is_drained: boolean;
  usable_slots: number;
  state: Truth;
  phase: string | null;
  /** The revision that brought what it serves. */
  revision: number | null;
  wanted_state: string | null;
  served_state: string | null;
  progress: number | null;
  detail: string | null;
  load_s: number | null;
  engine: Partial<EngineStats> | null;
  download: Download | null;
  memory: AgentMemory | null;
  desired_slots_total: number;
  download_current: number;
  download_filename: string | null;
  download_indeterminate: boolean;
  download_total: number;
  issues: AgentIssue[];
  model_path: string | null;
  slots_processing: number;
  slots_total: number;
  state_application_status: StateApplication;
  uses_chat_template_override: boolean;
  joined_ms: number;
  rates: AgentRates | null;
  ejected_until_ms: number | null;
  engine_restarts: number;
  lanes: Lane[];
}

export interface Deployment {
  aliases: string[];
  phase: string;
  state: Truth;
  /** What a request that comes now meets. */
  meets: "slot" | "queue" | "hold" | "nobody";
  waiting: number;
  oldest_wait_ms: number | null;
  running: number;
  /** Of the agents that answer. */
  slots: number;
  /** Agents that answer. */
  serving: number;
  offline: number;
  held: { reason: string; until_ms: number | null } | null;
  target: string | null;
}

export type RequestPhase = "buffered" | "leased" | "streaming" | "stopping" | "ended";

export interface QueueStay {
  since_ms: number;
  until_ms: number | null;
  positions: [ms: number, position: number][];
}

export interface Placement {
  agent: string;
  agent_key: number;
  lane: number;
  at_ms: number;
  why: string;
  prepared_ms: number | null;
  first_ms: number | null;
  prompt_tokens: number | null;
  cached_tokens: number | null;
  wait_ms: number | null;
  prefill_ms: number | null;
  template_ms: number | null;
  ended_ms: number | null;
  ending: string | null;
  /** How often the engine gave its cells to others for a while. */
  preemptions: number;
  /** When it did, the first of them, if the agent reports it. */
  preempted_ms?: number[];
}

export interface Ending {
  kind: "done" | "refused" | "failed" | "stopped" | "cancelled";
  code: number | null;
  text: string | null;
  /** Why an answer ended that was given. */
  finish: "stop" | "length" | "context" | "tools" | null;
}

export type Severity = "ok" | "info" | "quiet" | "warn" | "bad";

/** What the balancer says of a state. */
export interface StateWords {
  state: string;
  word: string;
  severity: Severity;
}

export interface RequestView {
  key: number;
  id: string;
  client: string;
  /** Address, program and user of a client without a name: text of strangers. */
  source?: string;
  deployment: string;
  /** Null, or absent from an older balancer, if it was made under none. */
  preset?: string | null;
  kind: "generation" | "embedding" | "rank" | "forwarded";
  route: string | null;
  /** The W3C trace that it belongs to, 32 hexadecimal digits. */
  trace?: string | null;
  phase: RequestPhase;
  state: StateWords;
  arrived_ms: number;
  position: number | null;
  queue: QueueStay[];
  placements: Placement[];
  first_result_ms: number | null;
  tokens: number;
  /** Absent in the feed. */
  progress?: [ms: number, tokens: number][];
  continuations: number;
  ended_ms: number | null;
  ending: Ending | null;
  /** Absent in the feed. */
  capture?: { request: string; answer: string } | null;
}

export interface Moment {
  now_ms: number;
  time: string;
}

export interface RequestList extends Moment {
  requests: RequestView[];
  next: number | null;
}

export interface RequestDetail extends Moment {
  request: RequestView;
  explanation: string[];
}

export interface AgentEvent {
  agent: string;
  agent_key: number;
  at_ms: number;
  event: "joined" | "left" | "phase";
  phase: string | null;
  detail: string | null;
}

export interface AgentHistory extends Moment {
  events: AgentEvent[];
}

export type RolloutPhase =
  | "prefetching"
  | "canary"
  | "rolling"
  | "paused"
  | "rolling_back"
  | "complete"
  | "rolled_back"
  | "aborted";

export interface RolloutAgent {
  agent: string;
  host: string;
  deployment: string;
  phase: string;
  detail: string | null;
  progress: number | null;
}

export interface Rollout {
  deployment: string;
  phase: RolloutPhase;
  reason: string | null;
  from: number | null;
  to: number | null;
  started: string | null;
  waits_for: string | null;
  ready_in_s: number | null;
  agents: RolloutAgent[];
}

export type MetricsField =
  | "start_ms"
  | "requests"
  | "failed"
  | "ttft_p50_ms"
  | "ttft_p95_ms"
  | "itl_p50_ms"
  | "itl_p95_ms"
  | "queue_p50_ms"
  | "queue_p95_ms"
  | "prompt_tokens"
  | "cached_tokens"
  | "generated_tokens"
  | "waiting_max"
  | "busy_max"
  | "slots";

/** The newest row of the metrics history, in the order of its `fields`; null where nothing was measured. */
export type MetricsRow = (number | null)[];

export interface MetricsHistory extends Moment {
  bucket_ms: number;
  fields: MetricsField[];
  rows: MetricsRow[];
}

export type MetricsKind = "fleet" | "deployment" | "agent" | "client" | "key";

/** Figures of a range of the past; seconds of Unix. */
export interface MetricsRange {
  by: MetricsKind;
  begin: number;
  end: number;
  step_s: number;
  fields: ("start_s" | MetricsField)[];
  series: { name: string; is_other: boolean; rows: (number | null)[][] }[];
  /** What is wrong with the history; empty if nothing is. */
  problem: string;
}

/** What was used in a period of UTC. */
export interface UsageRow {
  period: string;
  key: string | null;
  user: string | null;
  model: string | null;
  requests: number;
  failed: number;
  refused: number;
  prompt_tokens: number;
  cached_tokens: number;
  generated_tokens: number;
  /** Seconds of Unix. */
  last_s: number;
}

export interface UsageTable {
  by: "key" | "user" | "model";
  per: "day" | "month" | "all";
  begin: string;
  end: string;
  /** Whether names of users are kept. */
  by_user: boolean;
  rows: UsageRow[];
  problem: string;
}

/** The answer to a question about capacity; times in seconds, null where too many requests have none. */
export interface CapacityAnswer {
  span_s: number;
  /** The most answers at a time whose speed was measured. */
  measured_together: number;
  replayed: {
    requests: number;
    answered: number;
    holds: boolean;
    ttft_p50_s: number | null;
    ttft_p95_s: number | null;
    queue_p95_s: number | null;
    busy: number;
    breaks: { kind: string; at_s: number; counts: Record<string, number> } | null;
  };
  sites: { name: string; slots: number }[];
  slots_that_do: number | null;
  agents_that_do: number | null;
  at_that_holds: number | null;
  /** False: there was no time to try everything. */
  is_whole: boolean;
}

export interface LogsLast {
  seq: number;
  warnings: number;
  errors: number;
}

export interface LogEntry {
  /** Of the newest of those that say the same. */
  seq: number;
  /** The same for all that say the same. */
  group: number;
  count: number;
  /** When the first of them came. */
  first: string;
  time: string;
  level: string;
  logger: string;
  event: string;
  fields: Record<string, unknown>;
}

export interface LogList {
  entries: LogEntry[];
}

/** What a key may use; null for no limit. */
export interface KeyLimits {
  requests_per_minute: number | null;
  max_concurrent: number | null;
  tokens_per_day: number | null;
  tokens_per_month: number | null;
}

export interface ApiKey extends KeyLimits {
  name: string;
  scopes: string[];
  deployments: string[];
  requests: number;
  /** RFC 3339; null for never. */
  expires: string | null;
  expired: boolean;
  used: { requests_last_minute: number; concurrent: number; tokens_today: number; tokens_this_month: number };
}

export interface KeyList {
  /** Whether the balancer has a file of keys (`--api-key-file`). */
  file: boolean;
  keys: ApiKey[];
}

export interface NewKey {
  name: string;
  key: string;
}

export interface HubFile {
  path: string;
  size_bytes: number;
}

export interface HubModels {
  repo: string;
  revision: string;
  commit: string;
  quantizations: { name: string; files: HubFile[]; size_bytes: number; is_default: boolean }[];
  projections: HubFile[];
}

export interface TemplatePreview {
  prompt: string;
  num_tokens: number;
}

export interface FleetDeployment {
  name: string;
  target: string | null;
  phase: string;
  replicas: { wanted: number; serving: number };
  rollout: Rollout | null;
}

export interface Revision {
  revision: number;
  author: string;
  time: string;
  note: string | null;
  state: { deployments: Record<string, unknown>[] };
}

export interface FleetDocument {
  revision: Revision;
  deployments: FleetDeployment[];
}

export interface Session {
  required: boolean;
  signed_in: boolean;
  name: string | null;
  csrf: string | null;
}

export interface Info {
  version: string;
  addresses: Record<"inference" | "management" | "openai" | "ollama" | "panel", string | string[] | null>;
  /** Whether these addresses speak TLS. */
  encrypted: boolean;
  join: { address: string | null; problem: string | null; needs_key: boolean };
  capture: boolean;
}

/** A token with which machines may join; its secret is shown once, when it is made. */
export interface JoinToken {
  id: string;
  created: string;
  expires: string;
  uses_left: number;
  labels: Record<string, string>;
  name: string | null;
  by: string;
}

export interface JoinTokenList {
  tokens: JoinToken[];
  /** Why none can be made. */
  problem: string | null;
}

export interface NewJoinToken {
  id: string;
  token: string;
  command: string;
  expires: string;
  address: string;
}

/** The PIN in force, without its digits. */
export interface JoinPin {
  expires: string;
  tries_left: number;
  labels: Record<string, string>;
  by: string;
  balancer: string;
}

export interface JoinPinView {
  pin: JoinPin | null;
  /** Why none can be shown. */
  problem: string | null;
}

export interface NewJoinPin extends JoinPin {
  pin: string;
}

/** What an agent joined with, and goes on with. */
export interface AgentCredential {
  name: string;
  id: string;
  created: string;
  rotated: string | null;
  last_seen: string | null;
  address: string | null;
  connected: boolean;
  /** Why it may have been copied. */
  suspicious: string | null;
  labels: Record<string, string>;
  token: string | null;
  expires: string | null;
}

/** One thing that somebody did to the fleet. */
export interface AuditEntry {
  seq: number;
  time: string;
  who: string;
  source?: string;
  action: string;
  target: string;
  before: string | null;
  after: string | null;
  revision: number | null;
  outcome: string;
  details: Record<string, unknown>;
}

export interface AuditList {
  entries: AuditEntry[];
  file: { path: string; dropped: number; problem: string | null } | null;
}
