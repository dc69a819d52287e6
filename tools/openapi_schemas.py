"""JSON Schemas of the wire's shapes, read from the declarations that the converter reads.

What an attrs class requires, may leave out or be null follows the rules of
``paddler_trio/wire/shape.py``. Unions become ``oneOf`` with the tags of ``wire/tags.py``. The three
shapes that have hooks of their own come first in `Schemas.of`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import attrs

from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.paddler.request_params import ContentPart, MessageContent
from paddler_trio.wire.scalars import IntRange
from paddler_trio.wire.shape import WIRE_NAME
from paddler_trio.wire.tags import EXTERNAL_TAGS, INTERNAL_TAGS, Variant
from paddler_trio.wire.trio.fleet_state import PartialParameters
from paddler_trio.wire.trio.replica_range import ReplicaRange

Schema = dict[str, Any]

SCALARS: Mapping[object, Schema] = {
    object: {},
    bool: {"type": "boolean"},
    str: {"type": "string"},
}


class Schemas:
    """The named schemas of a document; they grow as shapes are asked for."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, shape: Any) -> Schema:
        """The schema of a shape, by reference where it has a name; ValueError if none is known."""
        if shape == MessageContent:
            return {"oneOf": [{"type": "string"}, self._array(ContentPart)]}
        if shape == ReplicaRange:
            pattern = r"all|[0-9]{1,9}\.\.[0-9]{1,9}"
            return {
                "oneOf": [
                    {"type": "integer", "minimum": 0},
                    {"type": "string", "pattern": f"^(?:{pattern})$"},
                ]
            }
        if shape == PartialParameters:
            return self._class(InferenceParameters, "PartialParameters", required=())
        if shape in EXTERNAL_TAGS:
            return self._tagged(EXTERNAL_TAGS[shape])
        if shape in INTERNAL_TAGS:
            field, classes = INTERNAL_TAGS[shape]
            return _one_of([self._with_tag(cls, field, tag) for tag, cls in classes.items()])
        if shape in SCALARS:
            return dict(SCALARS[shape])
        origin, arguments = get_origin(shape), get_args(shape)
        if origin is Annotated:
            bounds = shape.__metadata__[0]
            if isinstance(bounds, IntRange):
                return {"type": "integer", "minimum": bounds.low, "maximum": bounds.high}
            return {"type": "number"}
        if origin is tuple:
            return self._array(arguments[0])
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (Union, UnionType) and NoneType in arguments:
            inner = Union[tuple(each for each in arguments if each is not NoneType)]  # noqa: UP007
            return {"anyOf": [self.of(inner), {"type": "null"}]}
        if inspect.isclass(shape) and issubclass(shape, StrEnum):
            return {"type": "string", "enum": [each.value for each in shape]}
        if attrs.has(shape):
            return self._class(shape, shape.__name__)
        raise ValueError(f"no schema is known for {shape!r}: describe it here")

    def record(self, cls: Any, *, more: Mapping[str, Schema] | None = None) -> Schema:
        """The fields of a class as they stand under a tag, or where the tag is the route's."""
        return self._record(cls, more=more or {})

    def _class(self, cls: Any, name: str, required: tuple[str, ...] | None = None) -> Schema:
        if name not in self.named:
            self.named[name] = {}  # a shape may lead back to itself
            self.named[name] = self._record(cls, required=required)
        return {"$ref": f"#/components/schemas/{name}"}

    def _record(
        self,
        cls: Any,
        *,
        required: tuple[str, ...] | None = None,
        more: Mapping[str, Schema] | None = None,
    ) -> Schema:
        attrs.resolve_types(cls)
        properties: dict[str, Schema] = dict(more or {})
        needed: list[str] = []
        for field in attrs.fields(cls):
            name = field.metadata.get(WIRE_NAME, field.name)
            schema = self.of(field.type)
            if field.default is not attrs.NOTHING and type(field.default) in (
                bool,
                int,
                str,
                float,
            ):
                schema = {**schema, "default": field.default}
            properties[name] = schema
            may_be_absent = field.default is not attrs.NOTHING or "anyOf" in schema
            if field.metadata.get("required") or not may_be_absent:
                needed.append(name)
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if needed and required is None:
            schema["required"] = needed
        if cls.__doc__:
            schema["description"] = _plain(inspect.cleandoc(cls.__doc__))
        return schema

    def _with_tag(self, cls: Any, field: str, tag: str) -> Schema:
        schema = self._record(cls, more={field: {"const": tag}})
        return {**schema, "required": [field, *schema.get("required", [])]}

    def _tagged(self, variants: tuple[Variant, ...]) -> Schema:
        return _one_of([self._variant(each) for each in variants])

    def _variant(self, variant: Variant) -> Schema:
        if variant.carries == "nothing":
            return {"const": variant.tag}
        (cls, *_) = variant.classes
        match variant.carries:
            case "only field":
                attrs.resolve_types(cls)
                inner = self.of(attrs.fields(cls)[0].type)
            case "shape":
                inner = self._class(cls, cls.__name__)
            case _:
                inner = self._record(cls)
        properties = {variant.tag: inner}
        return {
            "type": "object",
            "properties": properties,
            "required": [variant.tag],
            "additionalProperties": False,
        }

    def _array(self, shape: Any) -> Schema:
        return {"type": "array", "items": self.of(shape)}


def _one_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"oneOf": schemas}


def _plain(docstring: str) -> str:
    """Markdown of a docstring, without what only readers of the code need."""
    text = docstring.partition("\nRaises:")[0].partition("\nSource:")[0].rstrip()
    return text.replace("``", "`")
