"""The four verbs of the wire: text to JSON values to typed values, and back.

``structure(loads(text), Shape)`` reads, ``dumps(unstructure(value))`` writes. A shape is an attrs
class of this package, one of its unions (``DesiredModel``), or either with ``| None``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from paddler_trio.wire.json_text import canonical, dumps, loads
from paddler_trio.wire.shape import ShapeError, reader_of, writer_of

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["ShapeError", "canonical", "dumps", "loads", "structure", "unstructure"]

T = TypeVar("T")


def structure(value: object, shape: TypeForm[T], /) -> T:
    """Turn a JSON value, as ``loads`` returns it, into a value of ``shape``.

    Raises:
      WireError: the first thing found wrong and where, as in
        ``required field missing @ $.conversation_history[0].role``.
    """
    return cast("T", reader_of(shape)(value, shape))


def unstructure(value: object, shape: object = None, /) -> object:
    """Turn a typed value into a JSON value that ``dumps`` writes.

    ``shape`` is needed only where the tag belongs to the place and not to the value: a whole
    ``Response.response``, say, is ``unstructure(result, AgentResponseBody)``.
    """
    return writer_of(type(value) if shape is None else shape)(value)
