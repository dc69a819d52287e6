"""The frames of both sockets, and the lines of streamed HTTP.

Four families, each a tag around an envelope: ``Request``, ``Response``, ``Notification``,
``Error``. A message is a value of its envelope's class; notifications have no envelope and a class
each.

The path of a token through the balancer avoids all of this where it can: ``AgentResponse`` keeps
the payload as it was read, and ``response_line`` writes it again without building an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from typing import Annotated, Final, TypeAlias, get_args

import attrs

from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.json_text import one_text, one_text_within
from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.paddler.request_params import (
    GENERATION_VARIANTS,
    WORK_VARIANTS,
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    PaddlerWork,
)
from paddler_trio.wire.paddler.results import EmbeddingResult, GeneratedTokenResult
from paddler_trio.wire.paddler.status import (
    ChatTemplate,
    ModelMetadata,
    SlotAggregatedStatusSnapshot,
)
from paddler_trio.wire.scalars import Int32
from paddler_trio.wire.shape import WIRE_NAME, ShapeError, describe, register
from paddler_trio.wire.tags import external_tag, newtype, struct, through, through_known, unit

# --- envelopes and notifications shared by families ------------------------------------------


@attrs.frozen
class ErrorDescription:
    """``code`` follows HTTP status numbers."""

    code: Int32
    description: str


@attrs.frozen
class ErrorEnvelope:
    """A request failed before or outside its results."""

    request_id: str
    error: ErrorDescription


@attrs.frozen
class StopRespondingTo:
    """Stop working on a request; the agent still sends a result that ends it."""

    request_id: str


@attrs.frozen
class UnknownNotification:
    """A notification of a newer version between balancer and agent; it is ignored, and the link
    stays."""

    name: str


# --- client to balancer ----------------------------------------------------------------------

InferenceRequestBody: TypeAlias = (
    ContinueFromConversationHistoryParams | ContinueFromRawPromptParams
)
external_tag(InferenceRequestBody, *GENERATION_VARIANTS)


@attrs.frozen
class InferenceRequest:
    """A generation asked for on the inference socket; the client chose ``id``."""

    id: str
    request: InferenceRequestBody


InferenceServerMessage: TypeAlias = InferenceRequest | StopRespondingTo | ErrorEnvelope
external_tag(
    InferenceServerMessage,
    struct(InferenceRequest, "Request"),
    through("Notification", StopRespondingTo),
    struct(ErrorEnvelope, "Error"),
)


# --- balancer to client ----------------------------------------------------------------------


@attrs.frozen
class Timeout:
    """Understood and never sent: clients get a 504 ``ErrorEnvelope``."""


@attrs.frozen
class TooManyBufferedRequests:
    """Understood and never sent: clients get a 503 ``ErrorEnvelope``."""


InferenceResponseBody: TypeAlias = (
    GeneratedTokenResult | EmbeddingResult | Timeout | TooManyBufferedRequests
)
_RESULTS: Final = (
    through("GeneratedToken", GeneratedTokenResult),
    through("Embedding", EmbeddingResult),
)
external_tag(InferenceResponseBody, *_RESULTS, unit(Timeout), unit(TooManyBufferedRequests))


@attrs.frozen
class InferenceResponse:
    """A result for a client; ``generated_by`` names the agent that made it."""

    generated_by: str | None
    request_id: str
    response: InferenceResponseBody


@attrs.frozen
class TokenGenerationDisabledNotification:
    """The cluster went into embeddings mode."""


@attrs.frozen
class TokenGenerationEnabledNotification:
    """The cluster came back from embeddings mode."""


InferenceClientNotification: TypeAlias = (
    TokenGenerationDisabledNotification | TokenGenerationEnabledNotification
)
external_tag(
    InferenceClientNotification,
    unit(TokenGenerationDisabledNotification, "TokenGenerationDisabled"),
    unit(TokenGenerationEnabledNotification, "TokenGenerationEnabled"),
)
InferenceClientMessage: TypeAlias = InferenceResponse | InferenceClientNotification | ErrorEnvelope
external_tag(
    InferenceClientMessage,
    struct(InferenceResponse, "Response"),
    through("Notification", InferenceClientNotification),
    struct(ErrorEnvelope, "Error"),
)


# --- balancer to agent -----------------------------------------------------------------------


@attrs.frozen
class GetChatTemplateOverride:
    """Asks for the template that replaces the model's own."""


@attrs.frozen
class GetModelMetadata:
    """Asks for the metadata of the loaded model file."""


AgentRequestBody: TypeAlias = PaddlerWork | GetChatTemplateOverride | GetModelMetadata
external_tag(
    AgentRequestBody, *WORK_VARIANTS, unit(GetChatTemplateOverride), unit(GetModelMetadata)
)


@attrs.frozen
class AgentRequest:
    """Work for an agent; the balancer chose ``id``."""

    id: str
    request: AgentRequestBody


@attrs.frozen
class SetState:
    """Run this from now on; progress shows in status updates."""

    desired_state: AgentDesiredState


@attrs.frozen
class Version:
    """The protocol that the balancer speaks; its first message."""

    version: str


AgentNotification: TypeAlias = SetState | StopRespondingTo | Version
_TO_AGENTS: Final = (struct(SetState), newtype(StopRespondingTo), struct(Version))
external_tag(AgentNotification, *_TO_AGENTS)
AgentMessage: TypeAlias = AgentRequest | AgentNotification | ErrorEnvelope
external_tag(
    AgentMessage,
    struct(AgentRequest, "Request"),
    through_known("Notification", AgentNotification, _TO_AGENTS, UnknownNotification),
    struct(ErrorEnvelope, "Error"),
)


# --- agent to balancer -----------------------------------------------------------------------


@attrs.frozen
class ChatTemplateOverride:
    """The template in force instead of the model's own, if there is one."""

    chat_template: ChatTemplate | None


@attrs.frozen
class LoadedModelMetadata:
    """The metadata of the model file, the wire's ``ModelMetadata``; None if none was loaded."""

    metadata: ModelMetadata | None


AgentResponseBody: TypeAlias = (
    GeneratedTokenResult | EmbeddingResult | ChatTemplateOverride | LoadedModelMetadata
)
external_tag(
    AgentResponseBody,
    *_RESULTS,
    newtype(ChatTemplateOverride),
    newtype(LoadedModelMetadata, "ModelMetadata"),
)
AGENT_RESPONSE_TAGS: Final = frozenset(
    {"ChatTemplateOverride", "Embedding", "GeneratedToken", "ModelMetadata"}
)

RawAgentResponse: TypeAlias = Annotated[object, "one of AGENT_RESPONSE_TAGS, the rest unread"]


def _read_raw_response(value: object, _: object) -> object:
    if type(value) is not dict or len(value) != 1:
        raise ShapeError(f"expected an object with one key, got {describe(value)}")
    (tag,) = value
    if tag not in AGENT_RESPONSE_TAGS:
        expected = ", ".join(sorted(AGENT_RESPONSE_TAGS))
        raise ShapeError(f"unknown variant {tag[:80]!r}, expected one of {expected}")
    return value


register(RawAgentResponse, lambda _: _read_raw_response, lambda _: lambda value: value)


@attrs.frozen
class AgentResponse:
    """An agent's answer; only its outer tag was looked at.

    ``structure(response_raw, AgentResponseBody)`` reads the rest where it is needed.
    """

    request_id: str
    generated_by: str | None
    response_raw: RawAgentResponse = attrs.field(metadata={WIRE_NAME: "response"})

    @classmethod
    def of(cls, request_id: str, body: AgentResponseBody) -> AgentResponse:
        """Return an agent's own answer; agents leave their name to the balancer."""
        return cls(request_id, None, unstructure(body, AgentResponseBody))


@attrs.frozen
class RegisterAgent:
    """An agent introduces itself; its first message."""

    name: str | None
    slot_aggregated_status_snapshot: SlotAggregatedStatusSnapshot


@attrs.frozen
class UpdateAgentStatus:
    """Something changed, or a second has passed."""

    slot_aggregated_status_snapshot: SlotAggregatedStatusSnapshot


@attrs.frozen
class DeregisterAgent:
    """The agent leaves and takes no more work."""


BalancerNotification: TypeAlias = RegisterAgent | UpdateAgentStatus | DeregisterAgent
_TO_BALANCERS: Final = (struct(RegisterAgent), struct(UpdateAgentStatus), unit(DeregisterAgent))
external_tag(BalancerNotification, *_TO_BALANCERS)
BalancerMessage: TypeAlias = AgentResponse | BalancerNotification | ErrorEnvelope
external_tag(
    BalancerMessage,
    struct(AgentResponse, "Response"),
    through_known("Notification", BalancerNotification, _TO_BALANCERS, UnknownNotification),
    struct(ErrorEnvelope, "Error"),
)


# --- reading and writing whole frames --------------------------------------------------------

_FAMILY_OF: Final[Mapping[type, object]] = {
    cls: family
    for family in (InferenceServerMessage, InferenceClientMessage, AgentMessage, BalancerMessage)
    for cls in get_args(family)
}


def parse_inference_server_message(text: str | bytes) -> InferenceServerMessage:
    """Read a frame from a client. Raises WireError."""
    return structure(loads(text), InferenceServerMessage)


def parse_agent_message(text: str | bytes) -> AgentMessage | UnknownNotification:
    """Read a frame that a balancer sent to an agent. Raises WireError."""
    return structure(loads(text), AgentMessage)


_TOKEN_FRAME: Final = re.compile(
    r'\{"Response":\{(?:"generated_by":(null|"[^"\\\x00-\x1f]{0,256}"),)?'
    r'"request_id":"([^"\\\x00-\x1f]{1,256})","response":\{"GeneratedToken":'
    r'\{"([A-Za-z]{1,32})":("(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])*+")\}\}\}\}'
)
"""One token of text, as agents write it; nothing in it is tried a second time."""
_TOKEN_FRAME_CHARS: Final = 4096


def read_token(text: str) -> tuple[str | None, str, dict[str, object]] | None:
    """Return who made a frame from an agent, for which request, and the result, if it is one token
    of text; None for every other frame. This is much cheaper than decoding and checking."""
    token = _TOKEN_FRAME.fullmatch(text) if len(text) <= _TOKEN_FRAME_CHARS else None
    if token is None:
        return None
    name, wire_id, kind, value = token.groups()
    generated_by = None if name in {None, "null"} else name[1:-1]
    return generated_by, wire_id, {kind: json.loads(value) if "\\" in value else value[1:-1]}


def parse_balancer_message(text: str) -> BalancerMessage | UnknownNotification:
    """Read a frame from an agent; the payload of a response stays raw. Raises WireError."""
    token = read_token(text)
    if token is not None:  # nearly always
        generated_by, wire_id, result = token
        return AgentResponse(wire_id, generated_by, {"GeneratedToken": result})
    return structure(loads(text), BalancerMessage)


def render(
    message: InferenceServerMessage | InferenceClientMessage | AgentMessage | BalancerMessage,
) -> bytes:
    """Write a message of any family as one frame, without a newline."""
    return dumps(unstructure(message, _FAMILY_OF[type(message)]))


def response_lines(
    generated_by: str | None, request_id: str, family: str, results: Iterable[object]
) -> bytes:
    """Return a line for each of them: an ``InferenceResponse`` around a raw result, and a
    newline."""
    head = _response_head(generated_by, request_id)
    begins = f"{head}{{{encode_basestring(family)}:"
    lines = []
    for result in results:
        token = one_text(result)
        if token is None:
            lines.append(response_line(generated_by, request_id, {family: result}) + b"\n")
        else:
            lines.append(f"{begins}{token}}}}}}}\n".encode())
    return b"".join(lines)


def response_line(generated_by: str | None, request_id: str, raw_response: object) -> bytes:
    """Return an ``InferenceResponse`` around a raw payload, without a newline; the hot path."""
    head = _response_head(generated_by, request_id)
    token = one_text_within(raw_response)
    if token is not None:
        return f"{head}{token}}}}}".encode()
    return head.encode() + dumps(raw_response) + b"}}"


def _response_head(generated_by: str | None, request_id: str) -> str:
    name = "null" if generated_by is None else encode_basestring(generated_by)
    return (
        f'{{"Response":{{"generated_by":{name},"request_id":{encode_basestring(request_id)},'
        '"response":'
    )


def error_line(request_id: str, code: int, description: str) -> bytes:
    """Return an ``ErrorEnvelope``, without a newline."""
    return render(ErrorEnvelope(request_id, ErrorDescription(code, description)))
