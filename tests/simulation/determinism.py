"""One integer decides everything: Trio's scheduler, every random draw, the order of all that waits.

Trio shuffles the tasks of a tick with a generator of its own; seeded, and given the tasks in a
fixed order first, it explores another interleaving for every seed and the same one for the same
seed. What the balancer draws itself (ids, seeds of answers) comes from the seed as well. Queues
whose real sizes no short run would ever fill are made small.

Log records are part of the trace; a record of the standard library at error level is a handler
that raised, which no scenario may cause.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog
from trio._core import _run

from paddler_trio.balancer.agents import agent_socket, embedding_fan_out
from paddler_trio.net.server import exchange
from paddler_trio.nursery_tree import request
from paddler_trio.telemetry import trace_context

Note = Callable[[str, str], None]


@contextmanager
def deterministic(seed: int, *, outbox_steps: int, outgoing_frames: int) -> Iterator[None]:
    """Everything inside is a function of ``seed``; what was there before is restored."""
    rng = random.Random(seed)
    secrets = SimpleNamespace(
        randbits=rng.getrandbits,
        token_hex=lambda size: f"{rng.getrandbits(8 * size) | 1:0{2 * size}x}",
        token_urlsafe=lambda _: f"id{rng.getrandbits(48):012x}",
    )
    scheduler_before = _run._r.getstate()
    replaced: list[tuple[ModuleType, str, object]] = [
        (request, "secrets", secrets),
        (exchange, "secrets", secrets),
        (trace_context, "secrets", secrets),
        (embedding_fan_out, "secrets", secrets),
        (request, "OUTBOX_STEPS", outbox_steps),
        (agent_socket, "OUTGOING_FRAMES", outgoing_frames),
        (_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
    ]
    with ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(patch.object(module, name, value))
        stack.callback(_run._r.setstate, scheduler_before)
        _run._r.seed(seed)
        yield


@contextmanager
def logs_to(note: Note, complain: Callable[[str], None]) -> Iterator[None]:
    """Structured records become lines of the trace; errors of the standard logger, complaints."""

    def keep(_: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        fields = " ".join(f"{key}={event[key]}" for key in sorted(event) if key != "event")
        note("balancer", f"{level}: {event['event']} {fields}")
        raise structlog.DropEvent

    class Complainer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")

    before = structlog.get_config()
    handler = Complainer(level=logging.ERROR)
    logger = logging.getLogger("paddler_trio")
    logger.addHandler(handler)
    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        logger.removeHandler(handler)
