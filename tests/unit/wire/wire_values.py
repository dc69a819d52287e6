"""Hypothesis strategies for wire values, derived from the declarations of the wire itself."""

from __future__ import annotations

from enum import StrEnum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, TypeVar, Union, cast, get_args, get_origin

import attrs
from hypothesis import strategies as st

from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.messages import AgentResponseBody, RawAgentResponse
from paddler_trio.wire.paddler.request_params import MessageContent
from paddler_trio.wire.scalars import IntRange

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

TEXT = st.text(max_size=6)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


def values_of(shape: TypeForm[T]) -> st.SearchStrategy[T]:
    """Every value the wire allows for ``shape``."""
    return cast("st.SearchStrategy[T]", st.deferred(lambda: _values_of(shape)))


def _values_of(shape: object) -> st.SearchStrategy[object]:
    origin = get_origin(shape)
    if shape == RawAgentResponse:
        return values_of(AgentResponseBody).map(lambda body: unstructure(body, AgentResponseBody))
    if shape == MessageContent or origin in (Union, UnionType):
        members = get_args(get_args(shape)[0] if origin is Annotated else shape)
        return st.one_of([_values_of(member) for member in members])
    if origin is Annotated:
        bounds = get_args(shape)[1]
        if isinstance(bounds, IntRange):
            return st.integers(bounds.low, bounds.high)
        return st.floats(width=32, allow_nan=False, allow_infinity=False)
    if origin is tuple:
        return st.lists(_values_of(get_args(shape)[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, _values_of(get_args(shape)[1]), max_size=3)
    if isinstance(shape, type):
        if attrs.has(shape):
            return _instances_of(shape)
        if issubclass(shape, StrEnum):
            return st.sampled_from(list(shape))
    scalars: dict[object, st.SearchStrategy[object]] = {
        bool: st.booleans(),
        str: TEXT,
        NoneType: st.none(),
        object: JSON_VALUES,
    }
    return scalars[shape]


def _instances_of(cls: type[attrs.AttrsInstance]) -> st.SearchStrategy[object]:
    attrs.resolve_types(cls)
    return st.builds(cls, **{field.name: _values_of(field.type) for field in attrs.fields(cls)})
