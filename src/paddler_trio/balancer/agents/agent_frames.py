"""The frames of an agent: what stands in them, and what they bring to requests."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import attrs
import trio

from paddler_trio.errors import WireError
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.request import Lease
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.wire.json_limits import UNCOUNTED_BYTES, check_count
from paddler_trio.wire.json_text import beginning_of, dumps
from paddler_trio.wire.paddler.messages import AgentResponse, parse_balancer_message
from paddler_trio.wire.paddler.raw_results import ends_stream, is_text, recover_request_id
from paddler_trio.wire.trio.prompt_stages import PromptStages, bounded_count
from paddler_trio.wire.trio.trio_link import MAX_FINGERPRINT_CHARS, TAG

_TRIO: Final = '{"Trio":'
SHOWN_CHARS: Final = 100
_NUM_FIELDS: Final = 3
"""Of an entry of a step with nothing to report."""
FAMILIES: Final = frozenset({"GeneratedToken", "Embedding"})
"""Of the responses that belong to requests."""


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER: Final = json.JSONDecoder(parse_constant=lambda name: None, parse_float=_finite)
"""What is no number is null: so it can be written again."""


@attrs.frozen
class AgentFrame:
    """Hold what stands in a frame: a message, the body of an extension, or what is wrong with
    it."""

    message: object
    is_extension: bool = False
    request_id: str | None = None
    """The request that fails, if something is wrong."""
    is_escaped: bool = False
    """Its texts may have half a surrogate pair, which no client can be sent."""


def decode(text: str, *, is_extended: bool) -> AgentFrame:
    try:
        if is_extended and text.startswith(_TRIO):
            if len(text) > UNCOUNTED_BYTES:
                check_count(text.encode())
            message = _value_of(text)[TAG]
            return AgentFrame(message, is_extension=True, is_escaped="\\u" in text)
        message = parse_balancer_message(text)
    except (WireError, ValueError, KeyError, RecursionError) as error:
        return AgentFrame(error, request_id=recover_request_id(text))
    return AgentFrame(
        message, request_id=message.request_id if isinstance(message, AgentResponse) else None
    )


def _value_of(text: str) -> Any:
    """Read JSON as ``json.loads`` does, without its search for blanks around the value where there
    are none."""
    value, end = _DECODER.raw_decode(text)
    return value if end == len(text) else _DECODER.decode(text)


def take_step(agent: AgentConnection, entries: object, *, is_escaped: bool = False) -> None:
    """Take everything one engine pass produced: the hot path, no converter involved. WireError.

    ``is_escaped``: as of the frame. Half a pair would fail where it is rendered: on a WebSocket,
    with all other requests of its client.
    """
    if not isinstance(entries, list):
        raise WireError("a step is a list @ $.Trio.Step")
    now_s = trio.current_time()
    for entry in entries:
        wire_id, tokens, results = _fields_of(entry)
        lease = agent.lease(wire_id)
        if lease is None:
            continue  # it was stopped; these were on their way
        if len(entry) > _NUM_FIELDS:
            if "prompt" in entry and (prompt := PromptStages.read(entry["prompt"])) is not None:
                lease.report_prompt(prompt)
            if "model" in entry:
                lease.bind(fingerprint_in(entry["model"]))
            if "preemptions" in entry:
                count = bounded_count(entry["preemptions"])
                lease.report_preemptions(count, is_now=not results)
        try:
            if is_escaped:
                dumps(results)
            deliver(lease, "GeneratedToken", results, tokens, extended=True, now_s=now_s)
        except WireError as error:
            lease.broken_frame(str(error))
            raise


def _fields_of(entry: object) -> tuple[str, list[int], list[RawResult]]:
    """Return what each entry of a step has; WireError."""
    if type(entry) is dict:
        wire_id, tokens, results = entry.get("id"), entry.get("tokens"), entry.get("results")
        if type(wire_id) is str and type(tokens) is list and type(results) is list:
            return wire_id, tokens, results
    raise WireError(f"not a step entry: {beginning_of(entry, SHOWN_CHARS)} @ $.Trio.Step")


def fingerprint_in(value: object) -> str:
    """Read the fingerprint of the model that answers; WireError."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_FINGERPRINT_CHARS:
        shown = beginning_of(value, SHOWN_CHARS)
        raise WireError(
            f"{shown} is no fingerprint of 1 to {MAX_FINGERPRINT_CHARS} characters "
            "@ $.Trio.Step[].model"
        )
    return value


def deliver(
    lease: Lease,
    family: str,
    results: list[RawResult],
    tokens: list[int] | None = None,
    *,
    extended: bool,
    now_s: float | None = None,
) -> None:
    """Pass results on, up to the first that ends the request; WireError, and nothing passed,
    if one is no result: clients could not read it either. ``extended``: the agent is ours;
    ``now_s`` as of :meth:`Lease.deliver`."""
    for place, result in enumerate(results):
        if family == "GeneratedToken" and is_text(result):
            continue
        if type(result) is str and family == "GeneratedToken":
            raise WireError("every generated token carries something @ $.GeneratedToken")
        if ends_stream({family: result}, extended=extended):
            lease.deliver(family, results[: place + 1], ends=True, tokens=tokens, now_s=now_s)
            return
    lease.deliver(family, results, ends=False, tokens=tokens, now_s=now_s)
