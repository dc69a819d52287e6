"""Tables of fields: the members of a request body, and how each is supported.

A field is *honoured*, *accepted* (valid, documented, and without effect here), *ignored* (it cannot
be honoured; the answer is less bound without it, or as good), or *refused*: known, and impossible
to honour, so that the answer would be wrong for its client. Only values that ask for something are
ignored or refused. A field that no table has is ignored too, and so is a value of another shape in
one that has no effect. ``null`` counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError, invalid, unsupported
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.ignored_fields import member as path_of
from paddler_trio.balancer.apis.shapes import (
    Anything,
    Either,
    ListOf,
    OneOf,
    Shape,
    Tagged,
    Text,
    shown,
    wrong,
)

MAX_PARTS = 4096


class FieldSupport(StrEnum):
    HONOURED = "honoured"
    ACCEPTED = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


@attrs.frozen
class Field:
    """One member of an object. ``note`` is a sentence for the documentation.

    ``aliases`` are other names for the same; two that disagree are an error. ``neutral`` are the
    values with which a field asks for nothing, as if it was not there.
    """

    name: str
    shape: Shape
    note: str
    is_required: bool = attrs.field(default=False, kw_only=True)
    support: FieldSupport = attrs.field(default=FieldSupport.HONOURED, kw_only=True)
    aliases: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    neutral: tuple[object, ...] = attrs.field(default=(), kw_only=True)


def tag(value: str, note: str = "Which kind it is.", *, is_required: bool = True) -> Field:
    """``type``, whose only value is ``value``."""
    return Field("type", OneOf((value,)), note, is_required=is_required)


def accepted(name: str, shape: Shape, note: str) -> Field:
    """Valid, and without effect; ``note`` is the reason."""
    return Field(name, shape, note, support=FieldSupport.ACCEPTED)


def hint(name: str, why: str, *, neutral: tuple[object, ...] = ()) -> Field:
    """Known, and ignored; ``why`` completes "is not supported:"."""
    return Field(name, Anything(), why, support=FieldSupport.IGNORED, neutral=neutral)


def refused(name: str, why: str, *, neutral: tuple[object, ...] = ()) -> Field:
    """Known, and not honoured; ``why`` completes "is not supported:"."""
    return Field(name, Anything(), why, support=FieldSupport.REFUSED, neutral=neutral)


def required(name: str, shape: Shape, note: str, *, aliases: tuple[str, ...] = ()) -> Field:
    """Return a field that must be there."""
    return Field(name, shape, note, is_required=True, aliases=aliases)


@attrs.frozen
class Record:
    """An object with these members; others have no meaning here."""

    expected = "an object"
    name: str
    fields: tuple[Field, ...]
    note: str = ""
    _by_name: Mapping[str, Field] = attrs.field(init=False, eq=False, repr=False)

    @_by_name.default
    def _index(self) -> Mapping[str, Field]:
        names: dict[str, Field] = {}
        for field in self.fields:
            for name in (field.name, *field.aliases):
                assert name not in names, f"{self.name}.{name} stands in the table twice"
                names[name] = field
        return names

    def value_of(self, name: str) -> str:
        """Return the only value that the member ``name`` may have."""
        shape = self._by_name[name].shape
        assert isinstance(shape, OneOf)
        (value,) = shape.choices
        return value

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> dict[str, object]:
        """Return the values of the fields that are honoured or accepted, under the fields' own
        names.

        Errors:
          ApiError: 400 with the path of the first member that is wrong or missing, or is ignored
            where that is not allowed.
        """
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        values: dict[str, object] = {}
        given_as: dict[str, str] = {}
        for name, member in value.items():
            field = self._by_name.get(name)
            if field is None:
                if member is not None or ignored.is_strict:
                    ignored.unknown(path, name)
                continue
            if member is None:
                continue
            if field.neutral and _is_neutral(member, field.neutral):
                continue
            where = path_of(path, name)
            if field.support in (FieldSupport.IGNORED, FieldSupport.REFUSED):
                if field.support is FieldSupport.REFUSED or ignored.is_strict:
                    raise unsupported(where, f"{field.note} (it is {shown(member)})")
                ignored.add(path, name)
                continue
            try:
                read = field.shape.read(member, where, ignored)
            except ApiError:
                if field.support is not FieldSupport.ACCEPTED or ignored.is_strict:
                    raise
                ignored.add(path, name)  # it would have no effect anyway
                continue
            if field.name in values and values[field.name] != read:
                raise invalid(f"{given_as[field.name]} and {name} say different things", where)
            values[field.name] = read
            given_as[field.name] = name
        for field in self.fields:
            if field.is_required and field.name not in values:
                where = path_of(path, field.name)
                raise ApiError(
                    400, f"{where} is missing", param=where, code="missing_required_parameter"
                )
        return values

    def schema(self) -> dict[str, object]:
        properties: dict[str, object] = {}
        for field in self.fields:
            for name in (field.name, *field.aliases):
                properties[name] = _described(field, name)
        described: dict[str, object] = {"type": "object", "properties": properties}
        needed = [field.name for field in self.fields if field.is_required]
        if needed:
            described["required"] = needed
        if self.note:
            described["description"] = self.note
        return described


def record(name: str, *fields: Field, note: str = "") -> Record:
    """Return a :class:`Record` of these fields."""
    return Record(name, fields, note)


def tagged(
    *records: Record,
    by: str = "type",
    default: str | None = None,
    ignores_others: bool = False,
    reads_others_as: str | None = None,
) -> Tagged:
    """Return one of these records, chosen by the member ``by``; ``default`` where it is missing."""
    by_value = {each.value_of(by): each for each in records}
    return Tagged(by, by_value, default, ignores_others, reads_others_as)


@attrs.frozen
class Parts:
    """A list of parts, each one of several records; others are reported and left out."""

    of: Tagged

    expected = "a list"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> list[object]:
        parts = ListOf(self.of, 0, MAX_PARTS).read(value, path, ignored)
        return [part for part in parts if not self.of.is_other(part)]

    def schema(self) -> dict[str, object]:
        return ListOf(self.of, 0, MAX_PARTS).schema()


def parts_of(*records: Record) -> Parts:
    """Return a list of parts, each one of these records."""
    return Parts(tagged(*records, ignores_others=True))


def text_or_parts(*records: Record) -> Either:
    """Return a text, or a list of parts, each one of these records."""
    return Either((Text(), parts_of(*records)))


def attachment(kind: str, *members: str, name: str = "filename") -> Record:
    """Return a part that nobody here can read; the model is told that it was there (`unread`)."""
    why = "what is attached is not read; the model is told that there was something"
    return record(
        f"{kind} part",
        tag(kind),
        Field(name, Text(), "Told to the model."),
        *(hint(member, why) for member in members),
    )


def sound() -> Record:
    """Return a part that holds sound, in OpenAI's form or llama-server's."""
    heard = record(
        "sound",
        Field("data", Text(least_chars=1), "The sound: base64, or a data URI."),
        Field(
            "url", Text(least_chars=1), "Instead: an address on a host that --image-host allows."
        ),
        accepted("format", Text(256), "The content says what it is."),
    )
    return record(
        "input_audio part",
        tag("input_audio", "A part that is a sound, for a model that hears."),
        required("input_audio", heard, "The sound."),
    )


def address_of_sound(part: object) -> str:
    """Return the address in a part with sound (:func:`sound`), or a data URI of what it has."""
    match part:
        case {"input_audio": {"url": str(url)}}:
            return url
        case {"input_audio": {"data": str(data)}}:
            return data if data.startswith("data:") else f"data:audio;base64,{data}"
    return "data:,"


def unread(part: Mapping[str, object], name: str = "filename") -> str:
    """Return what the model is told of an :func:`attachment`."""
    called = f" {part[name]!r}" if part.get(name) else ""
    kind = str(part["type"]).removeprefix("input_")
    return f"[{kind}{called}: attached here, but not readable]"


def object_in(values: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return the object that a table has read under ``name``; empty if it is absent."""
    value = values.get(name, {})
    assert isinstance(value, Mapping)
    return value


def list_in(values: Mapping[str, object], name: str) -> list[Any]:
    """Return the list that a table has read under ``name``, its items as the table has them; or
    empty."""
    value = values.get(name, [])
    assert isinstance(value, list)
    return value


def text_in(values: Mapping[str, object], name: str) -> str | None:
    """Return the text that a table has read under ``name``; None if it is absent or empty."""
    value = values.get(name)
    return str(value) if value else None


def _described(field: Field, name: str) -> dict[str, object]:
    if field.support is FieldSupport.REFUSED:
        return {"enum": [None, *field.neutral], "description": f"Not supported: {field.note}."}
    if field.support is FieldSupport.IGNORED:
        return {"description": f"Ignored: {field.note}."}
    if field.support is FieldSupport.ACCEPTED:
        return {"description": field.note}
    note = field.note if name == field.name else f"The same as {field.name}."
    schema = field.shape.schema()
    if not schema:  # anything, null included
        return {"description": note}
    if field.is_required:
        return {**schema, "description": note}
    return {"anyOf": [schema, {"type": "null"}], "description": note}


def _is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    """Return whether ``value`` is one of these; ``True`` is not 1 here, and 1.0 is."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral
    )
