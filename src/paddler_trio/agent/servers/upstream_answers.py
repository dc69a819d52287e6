"""Parse answers of upstream servers to questions about themselves.

llama-server: ``/props``, ``/slots``, ``/metrics``, ``/v1/models`` and, of a router, ``/models``.
Others have ``/v1/models``; vLLM says ``max_model_len`` there. Whatever is missing or has another
type is not known; only what is no JSON at all is an error. Prompts that ``/slots`` may hold are not
looked at.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

from paddler_trio.agent.servers.upstream_state import Modalities, ServerFacts, UpstreamModel

MAX_SLOTS: Final = 4096
MAX_MODELS: Final = 256
MAX_NAME_CHARS: Final = 256
MAX_TOKENS: Final = 1 << 40
_GAUGE: Final = re.compile(r"^llamacpp:requests_processing[ \t]++([0-9.eE+]{1,24})[ \t]*+$", re.M)


class UnusableAnswerError(Exception):
    """The text says what is wrong with it."""


def parse_props(body: bytes) -> ServerFacts:
    """Return ``/props`` of llama-server, or of one of its routers. UnusableAnswerError."""
    props = _object(_json(body))
    settings = _object(props.get("default_generation_settings"))
    modalities = _object(props.get("modalities"))
    is_router = props.get("role") == "router"
    return ServerFacts(
        total_slots=_count(props.get("total_slots"), MAX_SLOTS),
        context_tokens=_count(settings.get("n_ctx"), MAX_TOKENS),
        build=_text(props.get("build_info")),
        model_path="" if is_router else _text(props.get("model_path"), 4 * MAX_NAME_CHARS),
        modalities=Modalities(
            vision=modalities.get("vision") is True,
            audio=modalities.get("audio") is True,
            video=modalities.get("video") is True,
        ),
        has_slots=_flag(props.get("endpoint_slots")),
        has_metrics=_flag(props.get("endpoint_metrics")),
        is_router=is_router,
        is_sleeping=props.get("is_sleeping") is True,
    )


def parse_models(body: bytes) -> tuple[UpstreamModel, ...]:
    """Return ``/v1/models`` of any server, ``/models`` of a router: at most 256.
    UnusableAnswerError."""
    listed = _object(_json(body)).get("data")
    if not isinstance(listed, list):
        raise UnusableAnswerError("it lists no models under 'data'")
    models = []
    for entry in listed[:MAX_MODELS]:
        model = _object(entry)
        name = _text(model.get("id"))
        if name:
            status = _object(model.get("status"))
            word = "failed" if status.get("failed") is True else _text(status.get("value"))
            context = _object(model.get("meta")).get("n_ctx", model.get("max_model_len"))
            models.append(UpstreamModel(name, word, _count(context, MAX_TOKENS)))
    return tuple(models)


def parse_busy_slots(body: bytes) -> int:
    """Return how many slots of ``/slots`` are busy. UnusableAnswerError."""
    slots = _json(body)
    if not isinstance(slots, list) or len(slots) > MAX_SLOTS:
        raise UnusableAnswerError(f"it is no list of at most {MAX_SLOTS} slots")
    return sum(_object(slot).get("is_processing") is True for slot in slots)


def parse_busy_metric(body: bytes) -> int:
    """Return ``llamacpp:requests_processing`` of ``/metrics``. UnusableAnswerError."""
    text = body.decode("utf-8", "replace")
    found = _GAUGE.search(text)
    try:
        number = math.nan if found is None else float(found[1])
    except ValueError:
        number = math.nan
    if not 0 <= number <= MAX_SLOTS:
        raise UnusableAnswerError("it has no llamacpp:requests_processing")
    return int(number)


def parse_error(body: bytes) -> str:
    """Return the message of an answer that is an error, in one line of at most 200 characters;
    empty if it has none."""
    try:
        error = _object(_json(body)).get("error")
    except UnusableAnswerError:
        return ""
    message = error if isinstance(error, str) else _object(error).get("message")
    return _text(message, 200)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnusableAnswerError("it is no JSON") from error


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _count(value: object, largest: int) -> int | None:
    """Return a count. Zero says nothing: a router answers so."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value <= largest else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: object, longest: int = MAX_NAME_CHARS) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(each if each.isprintable() else " " for each in value[:longest])
