"""Reading tool calls gives events: calls as they were written, bit by bit and whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from paddler_trio.errors import PaddlerError

Arguments: TypeAlias = "dict[str, object] | str"
"""A JSON object, or the raw text where the model wrote none."""

ToolSchemas: TypeAlias = Mapping[str, Mapping[str, object]]
"""JSON Schema of the parameters by tool name; an empty one allows anything."""


@attrs.frozen
class CallBegun:
    """A call's name is known; ``id`` where the model wrote one."""

    name: str
    id: str | None = None


@attrs.frozen
class ArgumentsGrew:
    """The next piece of the JSON text of the arguments of the call that began last."""

    text: str


@attrs.frozen
class WrittenCall:
    """The call that began last is complete, not yet validated."""

    name: str
    arguments: Arguments
    id: str | None = None


@attrs.frozen
class Remainder:
    """Text that is no call in any known format, and why; ``is_last`` if the section ends in it."""

    text: str
    message: str
    is_last: bool = False


ReadEvent: TypeAlias = CallBegun | ArgumentsGrew | WrittenCall | Remainder
Emit: TypeAlias = Callable[[ReadEvent], object]


class NotACallError(PaddlerError):
    """Something is no call, or not all of one; the reader of the section catches it."""


class TooDeepError(PaddlerError):
    """A call is nested deeper than is read: the whole section is given up."""
