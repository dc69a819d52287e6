"""Values for what is known about an upstream server.

Parse answers of upstream servers to questions about themselves.

llama-server: ``/props``, ``/slots``, ``/metrics``, ``/v1/models`` and, of a router, ``/models``.
Others have ``/v1/models``; vLLM says ``max_model_len`` there. Whatever is missing or has another
type is not known; only what is no JSON at all is an error. Prompts that ``/slots`` may hold are not
looked at.
"""

from __future__ import annotations

import enum
import json
import math
import re
from typing import Final

import attrs


class Reachability(enum.Enum):
    """The answers to whether a server takes requests now."""

    READY = "ready"
    LOADING = "loading"
    """It answers, and loads its model."""
    SLEEPING = "sleeping"
    """It has unloaded its model; the next request loads it again."""
    UNAUTHORISED = "unauthorised"
    """It wants a key, or another one."""
    UNREACHABLE = "unreachable"
    """Nobody answers at its address."""
    FAILING = "failing"
    """It answers nothing useful, or its requests failed."""


@attrs.frozen
class UpstreamModel:
    """Args:
    status: of a model that a router may load: ``loaded``, ``loading``, ``sleeping``,
      ``unloaded``, ``downloading``, ``downloaded``, or ``failed``. Empty elsewhere: it is served.
    context_tokens: None if the server does not say.
    """

    name: str
    status: str = ""
    context_tokens: int | None = None

    @property
    def is_loaded(self) -> bool:
        """Return whether a request does not have to wait until it is loaded."""
        return self.status in {"", "loaded"}


@attrs.frozen
class Modalities:
    """The kinds of input that a model takes beside text, as llama-server says it."""

    vision: bool = False
    audio: bool = False
    video: bool = False


@attrs.frozen(kw_only=True)
class ServerFacts:
    """Facts that change only when the server or its model is another one.

    Args:
      total_slots: requests at once; None if it does not say.
      context_tokens: of each slot; None if it does not say.
      has_slots, has_metrics: whether these endpoints are on; None if it does not say.
      is_router: it loads models when requests name them.
    """

    total_slots: int | None = None
    context_tokens: int | None = None
    build: str = ""
    model_path: str = ""
    modalities: Modalities = Modalities()
    has_slots: bool | None = None
    has_metrics: bool | None = None
    is_router: bool = False
    is_sleeping: bool = False


@attrs.frozen(kw_only=True)
class UpstreamState:
    """A picture of the server.

    Args:
      reason: one line on why it is not ready; empty if it is.
      slots_total: how many requests it takes at once; None if neither it nor the operator says.
      slots_busy_elsewhere: how many of these serve others.
      still_generating: how many of these may serve requests of ours that were cancelled.
      has_slots_endpoint: whether others and cancelled requests can be noticed at all.
      changed_model: another model than at first.
      next_probe_s: of Trio's clock, while the server is not asked at its usual interval.
      num_failed: requests that it broke on, at the last look at it. So each look after one is told.
    """

    reachability: Reachability
    reason: str = ""
    slots_total: int | None = None
    slots_busy_elsewhere: int = 0
    still_generating: int = 0
    models: tuple[UpstreamModel, ...] = ()
    context_tokens: int | None = None
    has_slots_endpoint: bool = False
    build: str = ""
    model_path: str = ""
    modalities: Modalities = Modalities()
    is_router: bool = False
    changed_model: bool = False
    next_probe_s: float | None = None
    num_failed: int = 0

    @property
    def slots_offered(self) -> int:
        """The number of requests of ours that it can have in flight; those that it has are counted
        in."""
        if self.reachability not in {Reachability.READY, Reachability.SLEEPING}:
            return 0
        taken = self.slots_busy_elsewhere + self.still_generating
        return max(0, (self.slots_total or 0) - taken)


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
