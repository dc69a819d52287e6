"""A question about capacity and its answer, as JSON between two processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import attrs

from paddler_trio.scheduler.capacity.capacity import Question, Site, answer
from paddler_trio.scheduler.capacity.replayed_arrivals import Arrival
from paddler_trio.scheduler.virtual.virtual_engine import EngineSpeed
from paddler_trio.scheduler.virtual.virtual_fleet import StoppedError
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.json_text import loads

REFUSED: Final = 3
"""The status of the process when its answer is only why there is none."""


def asked(question: Question, arrivals: Sequence[Arrival]) -> bytes:
    """Write a question."""
    return dumps([attrs.asdict(question), [each.row() for each in arrivals]])


def answered(text: bytes, limit_s: float, has_time: Callable[[], bool]) -> tuple[int, bytes]:
    """Return the status and what is written: the ``Answer`` as JSON, or why there is none."""
    fields, rows = cast("tuple[dict[str, Any], list[Any]]", loads(text))
    sites = [
        Site(name=each["name"], slots=each["slots"], speed=EngineSpeed(**each["speed"]))
        for each in fields.pop("agents")
    ]
    try:
        found = answer(Question(agents=sites, **fields), [Arrival(*row) for row in rows], has_time)
    except StoppedError:
        problem = (
            f"the replay of {len(rows)} requests on {len(sites)} agents takes longer than "
            f"{limit_s:g} s: ask about a shorter time"
        )
        return REFUSED, problem.encode()
    except ValueError as error:
        return REFUSED, str(error).encode()
    return 0, dumps(attrs.asdict(found))
