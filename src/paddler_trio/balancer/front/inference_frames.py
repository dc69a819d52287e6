"""Read the frames that clients send on the inference WebSocket. Pure."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from paddler_trio.errors import WireError
from paddler_trio.net.server.input_budget import INLINE_BYTES
from paddler_trio.wire.json_limits import JsonLimitError
from paddler_trio.wire.paddler.messages import (
    ErrorEnvelope,
    InferenceRequest,
    StopRespondingTo,
    parse_inference_server_message,
)
from paddler_trio.wire.paddler.raw_results import recover_request_id
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    tool_schema_problem,
)
from paddler_trio.wire.trio.request_frame import EncodedWork, encode_work


@attrs.frozen
class Submission:
    """A request; ``problem`` is what is wrong with its tools."""

    id: str
    work: EncodedWork
    problem: str | None


@attrs.frozen
class Unreadable:
    """A frame that does not parse, and the request it names; ``status`` as in HTTP."""

    id: str | None
    status: int
    problem: str


Frame: TypeAlias = Submission | StopRespondingTo | ErrorEnvelope | Unreadable


def read_frame(text: str) -> Frame:
    """Read one frame of a client; one that does not parse is no error here."""
    try:
        message = parse_inference_server_message(text)
    except WireError as error:
        status = 413 if isinstance(error, JsonLimitError) else 400
        return Unreadable(recover_request_id(text), status, str(error))
    if not isinstance(message, InferenceRequest):
        return message
    work, problem = message.request, None
    if isinstance(work, ContinueFromConversationHistoryParams):
        problem = tool_schema_problem(work)
    return Submission(message.id, encode_work(work, in_runs=len(text) > INLINE_BYTES), problem)
