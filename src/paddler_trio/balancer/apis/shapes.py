"""The shapes of JSON values in request bodies: one object both validates a value and describes it.

``read`` returns the value, normalised (whole numbers as ``int``), or raises an error with the path
of what is wrong; ``schema`` describes the same values as JSON Schema, for the OpenAPI document. So
the document cannot promise what the validator refuses.

Bodies of the native routes have no shapes here: their classes travel on agent links too, and
`paddler_trio.net.server.json_body.structured` validates them as the wire does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, TypeAlias

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.wire.json_text import beginning_of, dumps_in_runs

Json: TypeAlias = dict[str, object]
"""A JSON object."""

SHOWN_CHARS = 80
MAX_FLOAT32 = 3.4e38


class Shape(Protocol):
    """See the module docstring."""

    @property
    def expected(self) -> str:
        """Return a description that completes "must be"."""
        ...

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> object:
        """Return the value; ApiError 400 with ``param`` if it has another shape.

        ``ignored`` collects the members that are left out.
        """
        ...

    def schema(self) -> Json:
        """Return this shape as JSON Schema."""
        ...


def shown(value: object) -> str:
    """Return a value for an error message: JSON, cut short."""
    text = beginning_of(value, SHOWN_CHARS + 1)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"


def wrong(shape: Shape, value: object, path: str) -> ApiError:
    """Return the error for a value of another shape."""
    return invalid(f"{path} is {shown(value)}, must be {shape.expected}", path, code="invalid_type")


def _beyond(limit: str, most: int, size: str, path: str) -> ApiError:
    """Return the error for a value whose size is over ``most``; ``limit`` names it, if any."""
    return invalid(f"{path} {size}, the limit{limit and ' ' + limit} is {most}", path)


@attrs.frozen
class Flag:
    expected = "true or false"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> bool:
        if not isinstance(value, bool):
            raise wrong(self, value, path)
        return value

    def schema(self) -> Json:
        return {"type": "boolean"}


@attrs.frozen
class _Ranged:
    """A number from ``least`` to ``most``, both included.

    ``clamps``: a number beyond these is reported, and taken as the nearest of them.
    """

    kind: ClassVar[str]
    """The type in JSON Schema."""
    noun: ClassVar[str]
    least: float | None = None
    most: float | None = None
    clamps: bool = False

    @property
    def expected(self) -> str:
        match self.least, self.most:
            case None, None:
                return self.noun
            case least, None:
                return f"{self.noun} of at least {least}"
            case None, most:
                return f"{self.noun} of at most {most}"
        return f"{self.noun} from {self.least} to {self.most}"

    def schema(self) -> Json:
        if self.clamps:
            return {"type": self.kind}
        return {"type": self.kind} | _bounds("minimum", self.least, "maximum", self.most)

    def _within(self, value: float, path: str, ignored: IgnoredFields) -> float:
        """Return the value, or the nearest bound if values are clamped; ApiError 400 otherwise."""
        low = value if self.least is None else max(value, self.least)
        nearest = low if self.most is None else min(low, self.most)
        if nearest != value:
            if not self.clamps or ignored.is_strict:
                raise invalid(f"{path} is {shown(value)}, must be {self.expected}", path)
            ignored.add("", path)
        return nearest


@attrs.frozen
class Integer(_Ranged):
    """A whole number; ``4.0`` is one, as in JSON Schema."""

    kind, noun = "integer", "a whole number"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(self, value, path)
        return int(self._within(value, path, ignored))


@attrs.frozen
class Number(_Ranged):
    kind, noun = "number", "a number"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(self, value, path)
        number = self._within(value, path, ignored)
        if abs(number) > MAX_FLOAT32:
            raise invalid(f"{path} is {shown(value)}, must be {self.expected}", path)
        return float(number)


@attrs.frozen
class Text:
    """``limit`` is the name of the limit that ``most_chars`` is, for the error."""

    most_chars: int | None = None
    limit: str = ""
    least_chars: int = 0

    @property
    def expected(self) -> str:
        return "a string" if not self.least_chars else "a string that is not empty"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> str:
        if not isinstance(value, str):
            raise wrong(self, value, path)
        if self.most_chars is not None and len(value) > self.most_chars:
            raise _beyond(self.limit, self.most_chars, f"has {len(value)} characters", path)
        if len(value) < self.least_chars:
            raise invalid(f"{path} is empty, must be {self.expected}", path)
        return value

    def schema(self) -> Json:
        return {"type": "string"} | _bounds(
            "minLength", self.least_chars or None, "maxLength", self.most_chars
        )


@attrs.frozen
class OneOf:
    """One of these strings."""

    choices: tuple[str, ...]

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> str:
        if not isinstance(value, str):
            raise wrong(self, value, path)
        if value not in self.choices:
            raise invalid(f"{path} is {shown(value)}, must be {self.expected}", path)
        return value

    def schema(self) -> Json:
        return {"type": "string", "enum": list(self.choices)}


@attrs.frozen
class Anything:
    """Any JSON."""

    expected = "JSON"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> object:
        return value

    def schema(self) -> Json:
        return {}


@attrs.frozen
class FreeObject:
    """An object with any members, each of the shape ``of``.

    ``most`` is how many, ``most_bytes`` what it takes when written compactly; ``limit`` the name of
    either. ``most_name_chars`` is how long each name may be.
    """

    of: Shape = attrs.field(factory=Anything)
    most: int | None = None
    limit: str = ""
    most_bytes: int | None = None
    most_name_chars: int | None = None

    expected = "an object"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> Json:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        if self.most is not None and len(value) > self.most:
            raise _beyond(self.limit, self.most, f"has {len(value)} entries", path)
        if self.most_bytes is not None:
            size_bytes = len(dumps_in_runs(value))
            if size_bytes > self.most_bytes:
                raise _beyond(self.limit, self.most_bytes, f"takes {size_bytes} bytes", path)
        if self.most_name_chars is not None:
            longest = max(value, key=len, default="")
            if len(longest) > self.most_name_chars:
                size = f"has the name {shown(longest)} of {len(longest)} characters"
                raise _beyond("of a name", self.most_name_chars, size, path)
        return {
            key: self.of.read(member, f"{path}.{key}", ignored) for key, member in value.items()
        }

    def schema(self) -> Json:
        described: Json = {"type": "object"}
        member = self.of.schema()
        if member:
            described["additionalProperties"] = member
        if self.most_name_chars is not None:
            described["propertyNames"] = {"maxLength": self.most_name_chars}
        return described | _bounds("minProperties", None, "maxProperties", self.most)


@attrs.frozen
class ListOf:
    of: Shape
    least: int = 0
    most: int | None = None
    limit: str = ""

    expected = "a list"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> list[object]:
        if not isinstance(value, list):
            raise wrong(self, value, path)
        if len(value) < self.least:
            raise invalid(f"{path} has {len(value)} entries, must have at least {self.least}", path)
        if self.most is not None and len(value) > self.most:
            raise _beyond(self.limit, self.most, f"has {len(value)} entries", path)
        return [
            self.of.read(member, f"{path}[{index}]", ignored) for index, member in enumerate(value)
        ]

    def schema(self) -> Json:
        described: Json = {"type": "array", "items": self.of.schema()}
        return described | _bounds("minItems", self.least or None, "maxItems", self.most)


@attrs.frozen
class PairOf:
    """A list of exactly two."""

    first: Shape
    second: Shape

    @property
    def expected(self) -> str:
        return f"a list of two: {self.first.expected}, then {self.second.expected}"

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> list[object]:
        if not isinstance(value, list) or len(value) != 2:
            raise wrong(self, value, path)
        return [
            self.first.read(value[0], f"{path}[0]", ignored),
            self.second.read(value[1], f"{path}[1]", ignored),
        ]

    def schema(self) -> Json:
        return {
            "type": "array",
            "prefixItems": [self.first.schema(), self.second.schema()],
            "items": False,
            "minItems": 2,
            "maxItems": 2,
        }


@attrs.frozen
class Either:
    """One of several shapes, distinguished by the kind of JSON: the first that fits is taken."""

    shapes: tuple[Shape, ...]

    @property
    def expected(self) -> str:
        return " or ".join(shape.expected for shape in self.shapes)

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> object:
        best: ApiError | None = None
        try:
            for shape in self.shapes:
                try:
                    return shape.read(value, path, ignored)
                except ApiError as error:
                    if error.param != path or error.code != "invalid_type":
                        best = best or error  # the kind is right: its error is more precise
            raise best or wrong(self, value, path)
        finally:
            del best  # its traceback has this frame, and with it the value

    def schema(self) -> Json:
        return {"anyOf": [shape.schema() for shape in self.shapes]}


@attrs.frozen
class Tagged:
    """An object whose member ``tag`` selects one of several records.

    ``ignores_others``: an object with another tag is ignored, and read as its tag alone;
    :meth:`is_other` tells which were.
    ``reads_others_as``: it is read as one with this tag, and its own is reported.
    """

    tag: str
    records: Mapping[str, Shape]
    default: str | None = None
    ignores_others: bool = False
    reads_others_as: str | None = None

    @property
    def expected(self) -> str:
        return f"an object with {self.tag}"

    def is_other(self, value: object) -> bool:
        """Return whether ``value`` was read as one that is ignored."""
        assert isinstance(value, Mapping), "it was read"
        return value.get(self.tag, self.default) not in self.records

    def read(self, value: object, path: str, ignored: IgnoredFields = STRICT) -> object:
        if not isinstance(value, dict):
            raise wrong(self, value, path)
        known = ", ".join(f'"{tag}"' for tag in self.records)
        where = f"{path}.{self.tag}"
        given = value.get(self.tag)
        given = self.default if given is None else given
        if given is None:
            text = f"{where} is missing, must be one of {known}"
            raise ApiError(400, text, param=where, code="missing_required_parameter")
        if not isinstance(given, str) or given not in self.records:
            if isinstance(given, str) and not ignored.is_strict:
                if self.ignores_others:
                    ignored.add(path, given)
                    return {self.tag: given}
                if (known_tag := self.reads_others_as) is not None:
                    ignored.add(path, self.tag)
                    return self.records[known_tag].read(
                        {**value, self.tag: known_tag}, path, ignored
                    )
            raise invalid(f"{where} is {shown(given)}, must be one of {known}", where)
        return self.records[given].read(value, path, ignored)

    def schema(self) -> Json:
        known = [record.schema() for record in self.records.values()]
        if self.reads_others_as is not None:
            general = self.records[self.reads_others_as].schema()
            members = general["properties"]
            assert isinstance(members, dict)
            general["properties"] = {**members, self.tag: {"type": "string"}}
            return {"anyOf": [*known, general]}
        if not self.ignores_others:
            return {"oneOf": known}
        kind = {"type": "string", "not": {"enum": list(self.records)}}
        other = {"type": "object", "properties": {self.tag: kind}, "required": [self.tag]}
        return {"oneOf": [*known, {**other, "description": "Ignored."}]}


def _bounds(least_name: str, least: float | None, most_name: str, most: float | None) -> Json:
    bounds = ((least_name, least), (most_name, most))
    return {name: value for name, value in bounds if value is not None}
