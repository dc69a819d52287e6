"""Orders of operators to one agent of ours: its model, its engine and its logs.

The balancer sends an :class:`Operate` over the link of the instance that is meant, only to agents
that offer :data:`ORDERS`. It is answered by one ``Answer``. Paddler's ``StopRespondingTo`` with its
id, and the end of the link, end the wait for log lines; the others are carried out at once.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias, get_args

import attrs

from paddler_trio.wire.scalars import IntRange, Uint64
from paddler_trio.wire.shape import ShapeError
from paddler_trio.wire.tags import external_tag, structs

ORDERS: Final = b"orders"
"""The feature of an agent that reads an ``Operate``."""
LogSource: TypeAlias = Literal["agent", "engine"]
LOG_SOURCES: Final[tuple[str, ...]] = get_args(LogSource)
MAX_LOG_LINES: Final = 1000
MAX_LOG_BYTES: Final = 256 * 1024
MAX_LOG_WAIT_MS: Final = 20_000


@attrs.frozen(kw_only=True)
class Unload:
    """Free the memory of the model, and load none until a :class:`Load`, whatever is desired.
    Running answers end first, or at the drain deadline elsewhere."""


@attrs.frozen(kw_only=True)
class Load:
    """Load what is desired again."""


@attrs.frozen(kw_only=True)
class RestartEngine:
    """End the engine's process and start another one; what it computed is handed back."""


@attrs.frozen(kw_only=True)
class ReadLog:
    """Return lines of a log, the newest last.

    Answered by a ``LogPage`` (``log_lines.py``). ``after``: only those behind this line; None for
    the last ones, as also where ``life``, from a page before, is that of another run of the agent.
    With ``wait_ms`` the answer waits for a line if there is none yet.
    """

    source: str
    lines: Annotated[int, IntRange(1, MAX_LOG_LINES)] = 200
    after: Uint64 | None = None
    life: str = ""
    wait_ms: Annotated[int, IntRange(0, MAX_LOG_WAIT_MS)] = 0

    def __attrs_post_init__(self) -> None:
        if self.source not in LOG_SOURCES:
            raise ShapeError(
                f"{self.source[:80]!r} is no log: one of {', '.join(LOG_SOURCES)}", "source"
            )


Order: TypeAlias = Unload | Load | RestartEngine | ReadLog
external_tag(Order, *structs(Order))


@attrs.frozen
class Operate:
    """See the module docstring."""

    id: str
    order: Order
