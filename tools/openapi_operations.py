"""What each route of Paddler's API and ours is for: the words that no type has.

Bodies are the classes that the routes read; answers are classes where they are made of one, else a
sentence. The routes of the APIs that are other people's describe themselves
(``paddler_trio/balancer/apis/openapi_document.py``).
"""

from __future__ import annotations

from typing import Any

import attrs

from paddler_trio.balancer.fleet.fleet_routes import FleetOrder, UndoOrder
from paddler_trio.balancer.front.template_routes import PreviewBody
from paddler_trio.net.server.router import WEBSOCKET
from paddler_trio.wire.paddler.desired_state import AgentDesiredState, BalancerDesiredState
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
)
from paddler_trio.wire.trio.cache_commands import Prune, Pull, Verify
from paddler_trio.wire.trio.desired_state_extras import ExtendedDesiredState
from paddler_trio.wire.trio.fit_messages import FitQuestion, FitReport
from paddler_trio.wire.trio.fleet_state import FleetRevision
from paddler_trio.wire.trio.model_questions import Detokenize, RenderPrompt, Tokenize
from paddler_trio.wire.trio.operations.operator_orders import LogPage
from paddler_trio.wire.trio.work import Generate

JSON = "application/json"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"
TEXT = "text/plain"
BYTES = "application/octet-stream"
ORDER_ERRORS = (404, 409, 501, 502, 503, 504)

TEXT_SCHEMA = {"type": "string"}
MODEL = {"type": "string", "description": "The deployment, or an alias of it."}
AGENTS = {
    "type": "array",
    "items": TEXT_SCHEMA,
    "description": "Names or ids of agents; all without it.",
}


def members(**properties: object) -> dict[str, Any]:
    """A schema of an object that has some of these."""
    return {"type": "object", "properties": properties, "additionalProperties": False}


KEY = members(
    name=TEXT_SCHEMA,
    scopes={"type": "array", "items": {"enum": ["inference", "management"]}},
    deployments={"type": "array", "items": TEXT_SCHEMA},
    expires={"type": "string", "format": "date-time"},
    ttl_s={"type": "number"},
    requests_per_minute={"type": "integer"},
    max_concurrent={"type": "integer"},
    tokens_per_day={"type": "integer"},
    tokens_per_month={"type": "integer"},
) | {"required": ["name"]}
JOIN_TOKEN = members(
    ttl_s={"type": "integer", "minimum": 1},
    uses={"type": "integer", "minimum": 1},
    labels={"type": "object", "additionalProperties": TEXT_SCHEMA},
    name={"type": ["string", "null"]},
    address={"type": ["string", "null"]},
)
CAPACITY_QUESTION = members(
    p95_ttft_s={"type": "number", "minimum": 0.001, "maximum": 3600},
    at={"type": "number", "minimum": 0.01, "maximum": 100},
    agents={"type": "integer", "minimum": 0, "maximum": 256},
    slots={"type": ["integer", "null"], "minimum": 1, "maximum": 256},
    deployment=TEXT_SCHEMA,
    last=TEXT_SCHEMA,
    arrivals={
        "type": ["array", "null"],
        "maxItems": 20_000,
        "items": {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 6},
    },
) | {"required": ["p95_ttft_s"]}
PIN = members(
    ttl_s={"type": "integer", "minimum": 1, "maximum": 900},
    labels={"type": "object", "additionalProperties": TEXT_SCHEMA},
)
PIN_TRY = members(
    message={"type": "string", "pattern": "^[0-9a-f]{66}$"},
    name=TEXT_SCHEMA,
    balancer=TEXT_SCHEMA,
) | {"required": ["message", "name", "balancer"]}
PIN_CONFIRMATION = members(
    exchange={"type": "string", "pattern": "^[0-9a-f]{12}$"},
    confirmation={"type": "string", "pattern": "^[0-9a-f]{64}$"},
) | {"required": ["exchange", "confirmation"]}
JOIN = members(
    id={"type": "string", "pattern": "^[0-9a-f]{12}$"},
    secret=TEXT_SCHEMA,
    credential_sha256={"type": "string", "pattern": "^[0-9a-f]{64}$"},
    name={"type": ["string", "null"]},
    host={"type": ["string", "null"]},
) | {"required": ["id", "secret", "credential_sha256", "name", "host"]}


@attrs.frozen
class Operation:
    """One route.

    Args:
      does: a sentence without its full stop.
      body: the class that is read, a schema, or None.
      more: members of the body beside the fields of its class.
      answer: the class that is written, or None for what ``does`` says.
      media: of the answer; empty for none.
      query: parameters, each with what it does.
      errors: statuses beside 401, 403 and 500.
      may_be_empty: the body may be left out.
    """

    does: str
    body: Any = None
    more: dict[str, Any] = attrs.field(factory=dict)
    answer: Any = None
    media: str = JSON
    status: int = 200
    query: dict[str, str] = attrs.field(factory=dict)
    errors: tuple[int, ...] = ()
    may_be_empty: bool = False


Table = dict[tuple[str, str], Operation]

PROBES: Table = {
    ("GET", "/health"): Operation("Liveness, as Paddler has it", media=TEXT),
    ("HEAD", "/health"): Operation("The head of that", media=""),
    ("GET", "/livez"): Operation("Liveness", media=TEXT),
    ("HEAD", "/livez"): Operation("The head of that", media=""),
    ("GET", "/readyz"): Operation("Whether requests are taken", media=TEXT, errors=(503,)),
    ("HEAD", "/readyz"): Operation("The head of that", media="", errors=(503,)),
}
GENERATION = (400, 408, 413, 415, 429, 501, 503)
CHANGE = (400, 408, 413, 415)

INFERENCE: Table = {
    **PROBES,
    ("POST", "/api/v1/continue_from_raw_prompt"): Operation(
        "Continue a text; a line for each token", ContinueFromRawPromptParams, errors=GENERATION
    ),
    ("POST", "/api/v1/continue_from_conversation_history"): Operation(
        "Answer a conversation; a line for each token",
        ContinueFromConversationHistoryParams,
        errors=GENERATION,
    ),
    ("POST", "/api/v1/generate_embedding_batch"): Operation(
        "Embed documents; a line for each", GenerateEmbeddingBatchParams, errors=GENERATION
    ),
    (WEBSOCKET, "/api/v1/inference_socket"): Operation(
        "The same over a WebSocket, as JSON-RPC", media="", status=101
    ),
    ("POST", "/api/v2/generate"): Operation(
        "Answer what the extended request asks; a line for each result",
        Generate,
        more={"model": MODEL},
        errors=(*GENERATION, 404, 504),
    ),
    ("POST", "/api/v2/tokenize"): Operation(
        "The tokens of a text", Tokenize, more={"model": MODEL}, errors=(400, 404, 501, 503)
    ),
    ("POST", "/api/v2/detokenize"): Operation(
        "The text of tokens", Detokenize, more={"model": MODEL}, errors=(400, 404, 501, 503)
    ),
    ("POST", "/api/v2/render_prompt"): Operation(
        "The prompt that a request would become",
        RenderPrompt,
        more={"model": MODEL},
        errors=(400, 404, 501, 503),
    ),
    ("GET", "/api/v2/model"): Operation(
        "What is known of the model",
        query={"model": "The deployment, or an alias of it"},
        errors=(404, 501, 503),
    ),
}

APIS: Table = {
    ("HEAD", "/api/tags"): Operation("The head of that", media=""),
    ("HEAD", "/api/version"): Operation("The head of that", media=""),
    ("GET", "/v1/models/{tail...}"): Operation("One of the deployments", errors=(404,)),
    ("GET", "/v1/responses/{tail}"): Operation("A stored response", errors=(400, 404)),
    ("GET", "/v1/responses/{tail}/input_items"): Operation(
        "The items that a stored response answered", errors=(400, 404)
    ),
    ("DELETE", "/v1/responses/{tail}"): Operation("Forget a stored response", errors=(404,)),
    ("DELETE", "/api/delete"): Operation(
        "Delete a preset, with a body as that of /api/show", errors=(400, 403, 404, 409, 501)
    ),
}

ROLLOUT_ERRORS = (404, 409, 500)
MANAGEMENT: Table = {
    **PROBES,
    ("GET", "/metrics"): Operation("Metrics, as Prometheus or OpenMetrics has them", media=TEXT),
    ("HEAD", "/metrics"): Operation("The head of that", media=""),
    ("GET", "/api/v1/agents"): Operation("The connected agents, as Paddler has them"),
    ("GET", "/api/v1/agents/stream"): Operation("The same at each change", media=EVENTS),
    ("GET", "/api/v1/buffered_requests"): Operation("How many requests wait"),
    ("GET", "/api/v1/buffered_requests/stream"): Operation("The same at each change", media=EVENTS),
    ("GET", "/api/v1/balancer_desired_state"): Operation(
        "What agents shall serve as `default`", answer=BalancerDesiredState
    ),
    ("PUT", "/api/v1/balancer_desired_state"): Operation(
        "Store it", BalancerDesiredState, status=204, media="", errors=CHANGE
    ),
    ("GET", "/api/v1/balancer_applicable_state"): Operation(
        "The same as it is sent to agents, or null", answer=AgentDesiredState | None
    ),
    ("GET", "/api/v1/agent/{agent_id}/model_metadata"): Operation(
        "The metadata of an agent's model file", errors=(404, 409, 502, 504)
    ),
    ("GET", "/api/v1/agent/{agent_id}/chat_template_override"): Operation(
        "The template that an agent uses in the place of the model's", errors=(404, 409, 502, 504)
    ),
    (WEBSOCKET, "/api/v1/agent_socket/{agent_id}"): Operation(
        "Where agents dial in", media="", status=101
    ),
    ("GET", "/compat/v1/agents"): Operation("The connected agents, as Paddler 1.x had them"),
    ("GET", "/compat/v1/agents/stream"): Operation(
        "The same at each change, and every five seconds", media=EVENTS
    ),
    ("GET", "/api/v2/agents"): Operation("The connected agents, with what Paddler has no word for"),
    ("GET", "/api/v2/agents/stream"): Operation("The same at each change", media=EVENTS),
    ("GET", "/api/v2/agents/history"): Operation(
        "When agents joined, left and changed their phase",
        query={"since_ms": "Only what came later, in milliseconds of the balancer's clock"},
        errors=(400,),
    ),
    ("POST", "/api/v2/agents/{agent_id}/drain"): Operation(
        "Let an agent finish what it has and give it nothing new", errors=(404, 409)
    ),
    ("DELETE", "/api/v2/agents/{agent_id}/drain"): Operation(
        "Give it work again", errors=(404, 409)
    ),
    ("POST", "/api/v2/agents/{agent_id}/fit"): Operation(
        "Would a model fit? Nothing changes",
        FitQuestion,
        answer=FitReport,
        errors=(400, 404, 409, 422, 501, 502, 503, 504),
    ),
    ("POST", "/api/v2/agents/{agent_id}/unload"): Operation(
        "Free the memory of an agent's model, and keep it free", errors=ORDER_ERRORS
    ),
    ("POST", "/api/v2/agents/{agent_id}/load"): Operation(
        "Let an agent load again what is desired", errors=ORDER_ERRORS
    ),
    ("POST", "/api/v2/agents/{agent_id}/restart_engine"): Operation(
        "End an agent's engine, and start it anew", errors=ORDER_ERRORS
    ),
    ("GET", "/api/v2/agents/{agent_id}/logs"): Operation(
        "The last lines of an agent's log, or of its engine's",
        answer=LogPage,
        query={
            "source": "`agent` or `engine`; its own log without it",
            "lines": "At most so many, 200 without it, up to 1,000",
            "after": "Only those behind the line of this number",
            "life": "What the page before said: another run of the agent counts anew",
            "wait_ms": "Wait so long for a line if there is none, up to 20,000",
        },
        errors=(400, *ORDER_ERRORS),
    ),
    ("GET", "/api/v2/machines"): Operation("The machines of all agents, and how they are doing"),
    ("GET", "/api/v2/agents/{agent_id}/machine"): Operation(
        "The machine of an agent, and how it is doing", errors=(404, 409)
    ),
    ("GET", "/api/v2/agents/{agent_id}/tree"): Operation(
        "The running tasks of an agent", errors=(404, 409, 501, 502, 504)
    ),
    ("GET", "/api/v2/tree"): Operation("The running tasks of the balancer"),
    ("GET", "/api/v2/balancer_desired_state"): Operation(
        "The desired state, and what Paddler has no field for", answer=ExtendedDesiredState
    ),
    ("PUT", "/api/v2/balancer_desired_state"): Operation(
        "Store both", ExtendedDesiredState, status=204, media="", errors=CHANGE
    ),
    ("GET", "/api/v2/fleet"): Operation("The revision in force, and how its deployments do"),
    ("PUT", "/api/v2/fleet"): Operation(
        "Make the fleet what the body says",
        FleetOrder,
        answer=FleetRevision,
        query={"dry_run": "`true` answers what would change, and stores nothing"},
        errors=(*CHANGE, 409),
    ),
    ("GET", "/api/v2/fleet/history"): Operation("The revisions that are kept, newest first"),
    ("POST", "/api/v2/fleet/undo"): Operation(
        "Go back to an earlier revision, as a new one",
        UndoOrder,
        answer=FleetRevision,
        errors=(*CHANGE, 404, 409),
        may_be_empty=True,
    ),
    ("GET", "/api/v2/rollout"): Operation("What is on its way, agent by agent"),
    ("GET", "/api/v2/rollout/stream"): Operation("The same at each change", media=EVENTS),
    ("POST", "/api/v2/rollout/{deployment}/pause"): Operation(
        "Begin with no further agent", errors=ROLLOUT_ERRORS
    ),
    ("POST", "/api/v2/rollout/{deployment}/resume"): Operation(
        "Go on with a rollout that is paused", errors=ROLLOUT_ERRORS
    ),
    ("POST", "/api/v2/rollout/{deployment}/abort"): Operation(
        "Give it up: agents go back", errors=ROLLOUT_ERRORS
    ),
    ("POST", "/api/v2/rollout/{deployment}/undo"): Operation(
        "Go back to what was served before the last rollout", errors=ROLLOUT_ERRORS
    ),
    ("POST", "/api/v2/template/preview"): Operation(
        "The prompt that a template would make", PreviewBody, errors=(400, 404, 501, 503, 504)
    ),
    ("GET", "/api/v2/models"): Operation(
        "What lies in the caches of agents; a line for each step",
        media=LINES,
        query={"agent": "Only this one; may be repeated"},
        errors=(400, 404, 503),
    ),
    ("POST", "/api/v2/models/pull"): Operation(
        "Have agents fetch models",
        Pull,
        {"agents": AGENTS},
        media=LINES,
        errors=(*CHANGE, 404, 503),
    ),
    ("POST", "/api/v2/models/verify"): Operation(
        "Have them hash their files again",
        Verify,
        {"agents": AGENTS},
        media=LINES,
        errors=(*CHANGE, 404, 503),
    ),
    ("POST", "/api/v2/models/prune"): Operation(
        "Have them remove what nothing keeps",
        Prune,
        {"agents": AGENTS},
        media=LINES,
        errors=(*CHANGE, 404, 503),
    ),
    ("GET", "/api/v2/hub/models"): Operation(
        "The models of a repository",
        query={"repo": "`org/repo`", "revision": "`main` without it"},
        errors=(400, 403, 404, 502, 504),
    ),
    ("GET", "/api/v2/requests"): Operation(
        "Requests in flight and finished, newest first",
        query={
            "state": "`in_flight`, `finished` or `all`",
            "limit": "At most 1000, of CSV 20000",
            "before": "Only those that arrived before the one with this key",
            "since_ms": "Only those that ended since, or have not",
            "deployment": "Only those for this one",
            "client": "Only those of this one",
            "agent": "Only those that this one was ever given",
            "ending": "`done`, `failed` or `stopped`",
            "format": "`json` or `csv`",
        },
        errors=(400,),
    ),
    ("GET", "/api/v2/requests/{name}"): Operation(
        "One request, by key or id, with its explanation", errors=(404,)
    ),
    ("DELETE", "/api/v2/requests/{name}"): Operation(
        "End it", status=204, media="", errors=(404, 409)
    ),
    ("GET", "/api/v2/events"): Operation(
        "What is watched, and its changes",
        media=EVENTS,
        query={"topics": "Names with commas between; all without it"},
        errors=(400, 503),
    ),
    ("GET", "/api/v2/metrics/history"): Operation("Figures of the last hour, by ten seconds"),
    ("GET", "/api/v2/metrics/range"): Operation(
        "Figures of any range that is kept, of the fleet or by deployment, agent, client or key",
        query={
            "range": "How long, up to now: such as `90s`, `30m`, `12h` or `7d`; `1h` without it",
            "from": "Instead of it a moment, RFC 3339 or seconds of Unix",
            "to": "And the moment at which it ends; now without it",
            "by": "`fleet`, `deployment`, `agent`, `client` or `key`",
            "name": "Only the series of this name",
        },
        errors=(400, 503),
    ),
    ("POST", "/api/v2/capacity"): Operation(
        "Would the fleet keep a time to the first token? Nothing changes",
        CAPACITY_QUESTION,
        errors=(400, 404, 409, 413, 501, 503, 504),
    ),
    ("GET", "/api/v2/capacity/arrivals"): Operation(
        "When requests came and how long they were, as a file for such a question",
        query={
            "deployment": "Whose; `default` without it",
            "last": "How long, up to now: such as `90s`, `30m` or `6h`, which it is without it",
        },
        errors=(400,),
    ),
    ("GET", "/api/v2/usage"): Operation(
        "What was used by day or month of UTC, by key, user or model",
        query={
            "by": "`key`, `user` or `model`",
            "per": "`day`, `month` or `all`",
            "month": "Only this one, such as `2026-11`",
            "from": "From this day on, such as `2026-11-29`",
            "to": "Up to this day, it included",
            "format": "`json` or `csv`",
        },
        errors=(400, 503),
    ),
    ("GET", "/api/v2/logs"): Operation(
        "The newest warnings and errors",
        query={"after": "Only what is newer than the entry of this number"},
        errors=(400,),
    ),
    ("GET", "/api/v2/audit"): Operation(
        "Who changed what, as far as memory has it",
        query={"after": "Only what is newer than the record of this number"},
        errors=(400,),
    ),
    ("GET", "/api/v2/keys"): Operation(
        "The keys, and what they have used; never the keys themselves"
    ),
    ("POST", "/api/v2/keys"): Operation(
        "Make a key; it is shown this once", KEY, status=201, errors=(*CHANGE, 409)
    ),
    ("DELETE", "/api/v2/keys/{name}"): Operation(
        "Make a key worthless", status=204, media="", errors=(404, 409)
    ),
    ("GET", "/api/v2/join-tokens"): Operation("The tokens that may still be used"),
    ("POST", "/api/v2/join-tokens"): Operation(
        "Make a token; it is shown this once", JOIN_TOKEN, status=201, errors=(*CHANGE, 409)
    ),
    ("DELETE", "/api/v2/join-tokens/{id}"): Operation(
        "Make a token worthless", status=204, media="", errors=(404,)
    ),
    ("GET", "/api/v2/join-pins"): Operation("The PIN in force, without its digits"),
    ("POST", "/api/v2/join-pins"): Operation(
        "Make a PIN; it is shown this once, and the one before is worthless",
        PIN,
        status=201,
        errors=(*CHANGE, 409),
    ),
    ("DELETE", "/api/v2/join-pins"): Operation(
        "Make the PIN worthless", status=204, media="", errors=(404,)
    ),
    ("POST", "/api/v2/join/pin"): Operation(
        "Try a PIN; asks for no key", PIN_TRY, errors=(400, 408, 409, 413, 429, 503)
    ),
    ("POST", "/api/v2/join/pin/confirm"): Operation(
        "Show that the PIN was right; asks for no key",
        PIN_CONFIRMATION,
        errors=(400, 408, 409, 413, 429),
    ),
    ("GET", "/api/v2/problems"): Operation("Everything that is wrong, and what to do about it"),
    ("GET", "/api/v2/known_agents"): Operation("The agents that were here and are gone"),
    ("DELETE", "/api/v2/known_agents/{name}"): Operation(
        "Forget an agent that is gone", status=204, media="", errors=(404, 409)
    ),
    ("GET", "/api/v2/agent-credentials"): Operation("The agents that have joined"),
    ("DELETE", "/api/v2/agent-credentials/{name}"): Operation(
        "Cut an agent off", status=204, media="", errors=(404,)
    ),
    ("GET", "/api/v2/join"): Operation("The certificates of the balancer; asks for no key"),
    ("POST", "/api/v2/join"): Operation(
        "Swap a token for a credential; asks for no key",
        JOIN,
        status=201,
        errors=(400, 408, 409, 413, 429),
    ),
}

STORE_ERRORS = (400, 403, 404, 502, 503, 507)
UPLOAD_ERRORS = (400, 408, 409, 411, 413, 422, 503, 507)
STORE: Table = {
    ("GET", "/api/v2/store"): Operation("The files of the model store, and its room"),
    ("PUT", "/api/v2/store/pins"): Operation(
        "Keep models whatever happens",
        query={"source": "which; repeatable"},
        errors=(400, 404, 409),
    ),
    ("DELETE", "/api/v2/store/pins"): Operation(
        "Keep them no longer", query={"source": "which; repeatable"}, errors=(400, 404)
    ),
    ("POST", "/api/v2/store/prune"): Operation(
        "Remove models that nothing keeps, none that is desired, pinned, in use or arriving",
        Prune,
        errors=(400, 408, 411, 413),
    ),
    ("PUT", "/api/v2/store/pins/{key...}"): Operation(
        "Keep a file whatever happens", status=204, media="", errors=(404, 409)
    ),
    ("DELETE", "/api/v2/store/pins/{key...}"): Operation(
        "Keep it no longer", status=204, media="", errors=(404,)
    ),
    ("DELETE", "/api/v2/store/files/{key...}"): Operation(
        "Remove a file", status=204, media="", errors=(404, 409)
    ),
    ("GET", "/api/v2/store/url/{name}"): Operation(
        "The file of a URL, which is the name in URL-safe base 64",
        media=BYTES,
        errors=STORE_ERRORS,
    ),
    ("GET", "/api/v2/store/hf/api/models/{rest...}"): Operation(
        "The hub's own listing of a repository", errors=STORE_ERRORS
    ),
    ("GET", "/api/v2/store/hf/{rest...}"): Operation(
        "A file of the hub, under the hub's own path", media=BYTES, errors=STORE_ERRORS
    ),
    ("HEAD", "/api/v2/store/hf/{rest...}"): Operation(
        "The head of that", media="", errors=STORE_ERRORS
    ),
    ("GET", "/api/v2/store/blobs/sha256/{sha256}"): Operation(
        "A file that was pushed", media=BYTES, errors=(400, 404)
    ),
    ("HEAD", "/api/v2/store/blobs/sha256/{sha256}"): Operation(
        "Whether it is there, or how much of it", media="", errors=(400, 404)
    ),
    ("PUT", "/api/v2/store/blobs/sha256/{sha256}"): Operation(
        "Push a file or a part of one: 201 when it is whole, 202 before",
        {"type": "string", "format": "binary"},
        status=201,
        media="",
        errors=UPLOAD_ERRORS,
    ),
    ("GET", "/api/v2/store/manifests/sha256/{sha256}"): Operation(
        "The names, sizes and hashes of a pushed model", errors=(400, 404)
    ),
    ("HEAD", "/api/v2/store/manifests/sha256/{sha256}"): Operation(
        "The head of that", media="", errors=(400, 404)
    ),
    ("PUT", "/api/v2/store/manifests/sha256/{sha256}"): Operation(
        "Make pushed files a model", {"type": "object"}, status=201, media="", errors=UPLOAD_ERRORS
    ),
}
