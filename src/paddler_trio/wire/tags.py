"""Enums as Paddler writes them: which variant, and what it carries.

Three styles exist on the wire, and a union of attrs classes stands for each enum here:

* *external tag*: ``{"Url": {...}}``, or a bare ``"None"`` for a variant that carries nothing.
  Reading also takes ``{"None": null}``; writing never produces it;
* *internal tag*: the variant is named by a sibling field, ``{"type": "gbnf", ...}``;
* *plain names*: a ``StrEnum``, all of whose variants carry nothing.

A variant's class carries its tag wherever it is read or written, alone or as a member of its
union. The exception is ``through``: there the tag belongs to the place, not to the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Final, Literal, TypeAlias, get_args

import attrs

from paddler_trio.wire.shape import (
    CONVERTER,
    Reader,
    ShapeError,
    Writer,
    describe,
    reader_of,
    record_reader,
    record_writer,
    register,
    writer_of,
)

AttrsClass: TypeAlias = type[attrs.AttrsInstance]
Carries: TypeAlias = Literal["nothing", "only field", "fields", "shape"]

EXTERNAL_TAGS: Final[dict[object, tuple[Variant, ...]]] = {}
"""The variants of each enum with external tags, by its union; descriptions are made of them."""
INTERNAL_TAGS: Final[dict[object, tuple[str, Mapping[str, AttrsClass]]]] = {}
"""The field and the classes of each enum with internal tags."""


@attrs.frozen
class Variant:
    """One variant of an externally tagged enum.

    ``payload`` builds the hooks for what stands under the tag; ``None`` if nothing does.
    ``classes`` are the Python classes whose values are written under this tag. ``carries``: for
    descriptions, how their fields stand there.
    """

    tag: str
    classes: tuple[AttrsClass, ...]
    payload: Callable[[], tuple[Reader, Writer]] | None
    tag_belongs_to_class: bool = True
    carries: Carries = "fields"


def unit(cls: AttrsClass, tag: str | None = None) -> Variant:
    """Return a variant that carries nothing: ``"Done"``."""
    return Variant(tag or cls.__name__, (cls,), None, carries="nothing")


def newtype(cls: AttrsClass, tag: str | None = None) -> Variant:
    """Return a variant that is its class's only field: ``{"ContentToken": "hi"}``."""

    def payload() -> tuple[Reader, Writer]:
        attrs.resolve_types(cls)
        (field,) = attrs.fields(cls)
        read, write, name = reader_of(field.type), writer_of(field.type), field.name
        return (
            lambda value, _: cls(**{name: read(value, field.type)}),
            lambda value: write(getattr(value, name)),
        )

    return Variant(tag or cls.__name__, (cls,), payload, carries="only field")


def struct(cls: AttrsClass, tag: str | None = None) -> Variant:
    """Return a variant that carries its class's fields by name: ``{"Url": {"url": "..."}}``."""
    return Variant(tag or cls.__name__, (cls,), lambda: (record_reader(cls), record_writer(cls)))


def structs(union: object) -> tuple[Variant, ...]:
    """Return a :func:`struct` for each class of ``union``."""
    return tuple(map(struct, get_args(union)))


def through(tag: str, shape: object) -> Variant:
    """Return a tag of this place around another shape: ``{"Notification": <Notification>}``."""

    def payload() -> tuple[Reader, Writer]:
        read = reader_of(shape)
        return (lambda value, _: read(value, shape)), writer_of(shape)

    classes = get_args(shape) or (shape,)
    return Variant(tag, classes, payload, tag_belongs_to_class=False, carries="shape")


def through_known(
    tag: str, shape: object, variants: tuple[Variant, ...], unknown: Callable[[str], object]
) -> Variant:
    """Make a variant as :func:`through` does, with an external tag of these variants; the name of
    any other is read by ``unknown`` instead of refused."""
    known = frozenset(variant.tag for variant in variants)
    outer = through(tag, shape)
    assert outer.payload is not None
    make = outer.payload

    def payload() -> tuple[Reader, Writer]:
        read_known, write = make()

        def read(value: object, shape: object) -> object:
            name = tag_of(value)
            return read_known(value, shape) if name is None or name in known else unknown(name)

        return read, write

    return attrs.evolve(outer, payload=payload)


def tag_of(value: object) -> str | None:
    """Return the variant of an externally tagged enum that this names; None if it is no enum."""
    match value:
        case str():
            return value
        case dict() if len(value) == 1:
            return str(next(iter(value)))
        case _:
            return None


def external_tag(union: object, *variants: Variant) -> None:
    """Register ``union`` as an externally tagged enum of ``variants``."""
    EXTERNAL_TAGS[union] = variants
    register(union, lambda _: _external_reader(variants), lambda _: _external_writer(variants))
    for variant in variants:
        if variant.tag_belongs_to_class and variant.classes != (union,):
            external_tag(variant.classes[0], variant)


def _external_reader(variants: tuple[Variant, ...]) -> Reader:
    units = {v.tag: v.classes[0]() for v in variants if v.payload is None}
    readers = {v.tag: v.payload()[0] for v in variants if v.payload is not None}
    expected = _one_of([variant.tag for variant in variants])

    def read(value: object, _: object) -> object:
        if type(value) is str:
            if value in units:
                return units[value]
            if value in readers:
                raise ShapeError(f"variant {value!r} must carry a value")
            raise ShapeError(f"unknown variant {value[:80]!r}, expected {expected}")
        if type(value) is not dict or len(value) != 1:
            raise ShapeError(f"expected {expected}, got {describe(value)}")
        ((tag, payload),) = value.items()
        if tag in units:
            if payload is not None:
                raise ShapeError(f"expected null, got {describe(payload)}", tag)
            return units[tag]
        reader = readers.get(tag)
        if reader is None:
            raise ShapeError(f"unknown variant {tag[:80]!r}, expected {expected}")
        try:
            return reader(payload, None)
        except ShapeError as error:
            error.path.append(tag)
            raise

    return read


def _external_writer(variants: tuple[Variant, ...]) -> Writer:
    units: dict[object, str] = {}
    writers: dict[object, tuple[str, Writer]] = {}
    for variant in variants:
        if variant.payload is None:
            units[variant.classes[0]] = variant.tag
        else:
            write_payload = variant.payload()[1]
            writers.update((cls, (variant.tag, write_payload)) for cls in variant.classes)

    def write(value: object) -> object:
        cls = type(value)
        if cls in units:
            return units[cls]
        tag, write_payload = writers[cls]
        return {tag: write_payload(value)}

    return write


def internal_tag(union: object, field: str, classes: Mapping[str, AttrsClass]) -> None:
    """Register ``union`` as the enum whose variant is named by the sibling field ``field``."""
    INTERNAL_TAGS[union] = (field, classes)
    register(
        union,
        lambda _: _internal_reader(field, classes),
        lambda _: _internal_writer(field, classes),
    )
    for tag, cls in classes.items():
        if cls is not union:
            internal_tag(cls, field, {tag: cls})


def _internal_reader(field: str, classes: Mapping[str, AttrsClass]) -> Reader:
    readers = {tag: record_reader(cls) for tag, cls in classes.items()}
    expected = _one_of(list(classes))

    def read(value: object, _: object) -> object:
        if type(value) is not dict:
            raise ShapeError(f"expected an object, got {describe(value)}")
        if field not in value:
            raise ShapeError("required field missing", field)
        tag = value[field]
        if type(tag) is not str:
            raise ShapeError(f"expected a string, got {describe(tag)}", field)
        if tag not in readers:
            raise ShapeError(f"unknown variant {tag[:80]!r}, expected {expected}", field)
        return readers[tag]({key: member for key, member in value.items() if key != field}, None)

    return read


def _internal_writer(field: str, classes: Mapping[str, AttrsClass]) -> Writer:
    writers = {cls: (tag, record_writer(cls)) for tag, cls in classes.items()}

    def write(value: attrs.AttrsInstance) -> dict[str, object]:
        tag, write_record = writers[type(value)]
        return {field: tag, **write_record(value)}

    return write


@cache
def _names_reader(enum: type[StrEnum]) -> Reader:
    members = {member.value: member for member in enum}
    expected = _one_of(list(members))

    def read(value: object, _: object) -> StrEnum:
        if type(value) is dict and len(value) == 1:  # {"Fresh": null}
            ((name, payload),) = value.items()
            if payload is not None:
                raise ShapeError(f"expected null, got {describe(payload)}", name)
        else:
            name = value
        if type(name) is not str:
            raise ShapeError(f"expected {expected}, got {describe(value)}")
        if name not in members:
            raise ShapeError(f"unknown variant {name[:80]!r}, expected {expected}")
        return members[name]

    return read


def _one_of(names: list[str]) -> str:
    return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"


def _read_name(value: object, enum: type[StrEnum]) -> object:
    return _names_reader(enum)(value, enum)


CONVERTER.register_structure_hook(StrEnum, _read_name)
CONVERTER.register_unstructure_hook(StrEnum, str)
