"""The strict converter: plain JSON values to frozen attrs values and back.

Paddler's peers refuse what is unknown to them, and so do we: an unknown field, a missing one, a
float where an integer belongs, ``null`` where only a default is allowed. How a field behaves is
read from its attrs definition:

* typed ``X | None``: may be absent or null, and is written as null;
* any other type with a default: may be absent, never null, and is always written;
* without a default: required;
* ``metadata=REQUIRED``: required on the wire although Python has a default;
* ``metadata=OMITTED``: left out when it has its default; ``metadata={WIRE_NAME: ...}``: its key.

``object`` means any JSON value, kept as it came. Every refusal is a ``ShapeError`` that collects
its path on the way out, innermost step first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, cast, get_args, get_origin

import attrs
import cattrs

from paddler_trio.errors import WireError
from paddler_trio.wire.scalars import Float32, IntRange, SinglePrecision, float32, float32s
from paddler_trio.wire.shape_error import ShapeError as ShapeError

# A hook's types are those of cattrs: what they hold is only known to the declaration they serve.
Reader: TypeAlias = Callable[[Any, Any], Any]
Writer: TypeAlias = Callable[[Any], Any]

WIRE_NAME: Final = "wire_name"
REQUIRED: Final[Mapping[object, object]] = MappingProxyType({"required": True})
OMITTED: Final[Mapping[object, object]] = MappingProxyType({"omitted": True})

CONVERTER: Final = cattrs.Converter()

MAX_SHOWN_BITS: Final = 4096
"""The bits of a number. TOML has hexadecimal ones of any length, which Python does not write in
digits."""
_ABSENT: Final = object()


def describe(value: object) -> str:
    """Say in a few words what a JSON value is, for the text of an error."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {value[:40]!r}" + ("..." if len(value) > 40 else "")
        case dict():
            return "an object"
        case list():
            return "an array"
        case int() if value.bit_length() > MAX_SHOWN_BITS:
            return f"a number of {value.bit_length()} bits"
        case _:
            return str(value)[:40]


def register(
    shape: object, reader: Callable[[object], Reader], writer: Callable[[object], Writer]
) -> None:
    """Give ``shape`` hooks of its own; both factories run at its first use."""
    CONVERTER.register_structure_hook_factory(lambda t: t == shape, reader)
    CONVERTER.register_unstructure_hook_factory(lambda t: t == shape, writer)


def reader_of(shape: object) -> Reader:
    """Return the hook that reads ``shape``; hold on to it rather than asking again."""
    return CONVERTER.get_structure_hook(shape)


def writer_of(shape: object) -> Writer:
    """Return the hook that writes ``shape``."""
    return CONVERTER.get_unstructure_hook(shape)


# --- objects with known fields ---------------------------------------------------------------


@attrs.frozen
class _Field:
    name: str
    wire_name: str
    shape: object
    required: bool
    nullable: bool
    omitted: bool
    default: object


def _fields(cls: type[attrs.AttrsInstance]) -> list[_Field]:
    attrs.resolve_types(cls)
    result = []
    for attribute in attrs.fields(cls):
        nullable = _is_optional(attribute.type)
        has_default = attribute.default is not attrs.NOTHING
        result.append(
            _Field(
                name=attribute.name,
                wire_name=attribute.metadata.get(WIRE_NAME, attribute.name),
                shape=attribute.type,
                required=bool(attribute.metadata.get("required")) or not (nullable or has_default),
                nullable=nullable and not has_default,
                omitted=bool(attribute.metadata.get("omitted")),
                default=attribute.default,
            )
        )
    return result


def record_reader(cls: type[attrs.AttrsInstance]) -> Reader:
    """Read an object into ``cls``, whatever tag its class is registered under."""
    fields = [(field, reader_of(field.shape)) for field in _fields(cls)]
    known = frozenset(field.wire_name for field, _ in fields)

    def read(value: object, _: object) -> object:
        if type(value) is not dict:
            raise ShapeError(f"expected an object, got {describe(value)}")
        if not value.keys() <= known:
            unknown = next(key for key in value if key not in known)
            raise ShapeError(f"unknown field {unknown[:80]!r}")
        arguments: dict[str, object] = {}
        for field, read_field in fields:
            raw = value.get(field.wire_name, _ABSENT)
            if raw is not _ABSENT:
                try:
                    arguments[field.name] = read_field(raw, field.shape)
                except ShapeError as error:
                    error.path.append(field.wire_name)
                    raise
            elif field.required:
                raise ShapeError("required field missing", field.wire_name)
            elif field.nullable:
                arguments[field.name] = None
        return cls(**arguments)

    return read


def record_writer(cls: type[attrs.AttrsInstance]) -> Writer:
    """Write ``cls`` as an object, whatever tag its class is registered under."""
    fields = [(field, writer_of(field.shape)) for field in _fields(cls)]

    def write(value: object) -> dict[str, object]:
        result: dict[str, object] = {}
        for field, write_field in fields:
            member = getattr(value, field.name)
            if not field.omitted or member != field.default:
                result[field.wire_name] = write_field(member)
        return result

    return write


# --- scalars, arrays, maps, optionals --------------------------------------------------------


def _read_bool(value: object, _: object) -> bool:
    if value is True or value is False:
        return value
    raise ShapeError(f"expected true or false, got {describe(value)}")


def _read_str(value: object, _: object) -> str:
    if type(value) is str:
        return value
    raise ShapeError(f"expected a string, got {describe(value)}")


def _integer_reader(bounds: IntRange) -> Reader:
    low, high = bounds.low, bounds.high

    def read(value: object, _: object) -> int:
        if type(value) is int and low <= value <= high:  # a bool's type is not int
            return value
        raise ShapeError(f"expected an integer in {low}..{high}, got {describe(value)}")

    return read


def _read_float32(value: object, _: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise ShapeError(f"expected a number, got {describe(value)}")
    try:
        return float32(value)
    except WireError as error:
        raise ShapeError(str(error)) from error


def _read_float32s(value: object, _: object) -> tuple[float, ...]:
    if type(value) is not list:
        raise ShapeError(f"expected an array, got {describe(value)}")
    if {*map(type, value)} <= {float, int}:
        try:
            return float32s(value)
        except WireError:
            pass  # read again, one by one, to find out which of them it was
    return tuple(_read_each(value, _read_float32, Float32))


def _read_each(value: list[object], read: Reader, shape: object) -> list[Any]:
    result = []
    for index, item in enumerate(value):
        try:
            result.append(read(item, shape))
        except ShapeError as error:
            error.path.append(index)
            raise
    return result


def _array_reader(shape: object) -> Reader:
    item_shape = get_args(shape)[0]
    if item_shape == Float32:
        return _read_float32s
    read_item = reader_of(item_shape)
    bounds = _bounds_of(item_shape)

    def read(value: object, _: object) -> tuple[object, ...]:
        if type(value) is not list:
            raise ShapeError(f"expected an array, got {describe(value)}")
        if bounds is not None and _are_within(value, bounds):
            return tuple(value)
        return tuple(_read_each(value, read_item, item_shape))

    return read


def _are_within(value: list[object], bounds: IntRange) -> bool:
    """Return whether all are integers within ``bounds``; quick for a prompt of a million token
    ids."""
    if {*map(type, value)} != {int}:
        return False
    numbers = cast("list[int]", value)
    return bounds.low <= min(numbers) and max(numbers) <= bounds.high


def _bounds_of(shape: object) -> IntRange | None:
    """Return the bounds of an integer shape, such as ``Int32``; None for all others."""
    bounds = _metadata_of(shape)
    return bounds if isinstance(bounds, IntRange) else None


def _array_writer(shape: object) -> Writer:
    item_shape = get_args(shape)[0]
    if item_shape == Float32 or _bounds_of(item_shape) is not None:
        return list
    write_item = writer_of(item_shape)
    return lambda value: [write_item(item) for item in value]


def _map_reader(shape: object) -> Reader:
    _, item_shape = get_args(shape)
    read_item = reader_of(item_shape)

    def read(value: object, _: object) -> dict[str, object]:
        if type(value) is not dict:
            raise ShapeError(f"expected an object, got {describe(value)}")
        result: dict[str, object] = {}
        for key, item in value.items():
            try:
                result[key] = read_item(item, item_shape)
            except ShapeError as error:
                error.path.append(key)
                raise
        return result

    return read


def _is_optional(shape: object) -> bool:
    return get_origin(shape) in (Union, UnionType) and NoneType in get_args(shape)


def _inner(shape: object) -> object:
    """Return ``X`` of ``X | None``."""
    return Union[tuple(member for member in get_args(shape) if member is not NoneType)]  # noqa: UP007


def _optional_reader(shape: object) -> Reader:
    inner = _inner(shape)
    read = reader_of(inner)
    return lambda value, _: None if value is None else read(value, inner)


def _optional_writer(shape: object) -> Writer:
    write = writer_of(_inner(shape))
    return lambda value: None if value is None else write(value)


def _metadata_of(shape: object) -> object:
    return shape.__metadata__[0] if get_origin(shape) is Annotated else None  # type: ignore[attr-defined]


def _refuse_unbounded(_: object, shape: object) -> float:
    raise TypeError(f"a wire field typed {shape}: give it a range from wire.scalars")


def _as_it_is(value: object, _: object = None) -> object:
    return value


def _is_array(shape: object) -> bool:
    return get_origin(shape) is tuple


def _is_map(shape: object) -> bool:
    return get_origin(shape) in (dict, Mapping)


# cattrs looks up these four by class, before it asks any predicate.
CONVERTER.register_structure_hook(bool, _read_bool)
CONVERTER.register_structure_hook(str, _read_str)
CONVERTER.register_structure_hook(int, _refuse_unbounded)
CONVERTER.register_structure_hook(float, _refuse_unbounded)

_read = CONVERTER.register_structure_hook_factory
_write = CONVERTER.register_unstructure_hook_factory
_read(attrs.has, record_reader)
_write(attrs.has, record_writer)
_read(lambda t: t is object, lambda _: _as_it_is)
_write(lambda t: t is object, lambda _: _as_it_is)
_read(lambda t: _bounds_of(t) is not None, lambda t: _integer_reader(t.__metadata__[0]))
_read(lambda t: isinstance(_metadata_of(t), SinglePrecision), lambda _: _read_float32)
_read(_is_array, _array_reader)
_write(_is_array, _array_writer)
_read(_is_map, _map_reader)
_write(_is_map, lambda _: dict)
_read(_is_optional, _optional_reader)
_write(_is_optional, _optional_writer)
