"""Schemas as programs send them, made into JSON Schema 2020-12.

Schemas of tools are written by hand, by generators of every age, and for other validators. One odd
keyword is no reason to refuse a conversation. What has a plain meaning is written as the newest
draft has it: bounds of draft 4, ``items`` that is a list, names of types from other languages,
references by ``$id`` or ``$anchor``. What has none is left out, and its place is noted.

Pure, and linear in the size of the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import TypeAlias
from urllib.parse import unquote, urldefrag

import attrs

from paddler_trio.wire.json_schema_values import (
    ANYTHING,
    CHECKS,
    NOTHING,
    at,
    joined,
    last_name,
    places_of,
)

Schema: TypeAlias = dict[str, object]

ANSWER_SCHEMA = "schema"
TOOL_SCHEMA = "tools[].function.parameters"
"""How agents name the schemas of a request where they report what could not be held."""
MAX_DEPTH = 48
"""Of schemas inside each other; what is deeper may be anything."""

_ONE = frozenset(
    {
        "additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
        "unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema",
    }
)  # fmt: skip
_BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_VALUES = frozenset({"const", "default", "enum", "examples"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMING = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary")
"""Where a schema stands and what it is called: references are written without."""

KNOWN_FORMATS = frozenset(
    {
        "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float", "double", "decimal",
    }
)  # fmt: skip
_NOT_IN_GRAMMARS = frozenset(
    {
        "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "contains",
        "minContains", "maxContains", "unevaluatedItems",
    }
)  # fmt: skip
MAX_COUNT = 65_536
"""The most characters, items or properties that a grammar counts."""
MAX_FREE_NAMES = 4
"""Of an object whose properties are counted: each choice of those that need not be there is one
way."""
MAX_INTEGER = 2**63 - 2**10
"""The greatest integer of 64 bits that a double has, too."""
MAX_MULTIPLE = 10_000
"""The largest ``multipleOf`` as an integer: a state is kept for each remainder."""
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_LOOKS_AROUND = re.compile(r"\(\?[=!<]|\\[1-9bBpPk]")


@attrs.frozen
class LawfulSchema:
    """A schema that validators and grammars take.

    Attributes:
      lost: the paths of what had no meaning, and is left out.
      unbound: the paths of what no grammar can hold an answer to; it stays.
    """

    schema: Schema
    lost: list[tuple[str, str]]
    unbound: list[tuple[str, str]]


def lawful_schema(given: Mapping[str, object]) -> LawfulSchema:
    """Return the same schema, as 2020-12 has it; references lead only to places inside it.

    Raises:
      RecursionError: it is nested deeper than the interpreter follows.
    """
    work = _Work(_copied(given))
    work.rewrite()
    work.write_references()
    return LawfulSchema(work.root, work.lost, work.unbound)


def holds_multiples_of(step: object) -> bool:
    """Return whether a grammar can hold a number to be a multiple of this one."""
    if not isinstance(step, int | float) or isinstance(step, bool) or not step > 0:
        return False
    _, digits, exponent = Decimal(repr(step)).normalize().as_tuple()
    if not isinstance(exponent, int) or not -9 <= exponent <= 4:
        return False
    whole = int("".join(map(str, digits)))
    return whole <= MAX_MULTIPLE // int(10 ** max(exponent, 0))


def _required_of(schema: Schema) -> list[str]:
    required = schema.get("required")
    return (
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )


def _are_disjoint(sets: list[frozenset[str] | None]) -> bool:
    known = [each for each in sets if each is not None]
    return len(known) == len(sets) and len(frozenset().union(*known)) == sum(map(len, known))


def _kinds_of(schema: Schema) -> frozenset[str] | None:
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds]
    if not all(isinstance(name, str) for name in names):
        return None
    return frozenset("number" if name == "integer" else str(name) for name in names)


def _values_of(schema: object) -> frozenset[str] | None:
    if not isinstance(schema, dict) or not schema.keys() & {"const", "enum"}:
        return None
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list):
        return None
    return frozenset(json.dumps(value, sort_keys=True) for value in values)


def _values_at(name: str, schema: Schema) -> frozenset[str] | None:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or name not in _required_of(schema):
        return None
    return _values_of(properties.get(name))


def _is_over(value: object, limit: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > limit


def _copied(value: object) -> Schema:
    def copy(inner: object) -> object:
        if isinstance(inner, Mapping):
            return {str(name): copy(each) for name, each in inner.items()}
        if isinstance(inner, list | tuple):
            return [copy(each) for each in inner]
        return inner

    copied = copy(value)
    assert isinstance(copied, dict), "a mapping was given"
    return copied


@attrs.define(eq=False)
class _Work:
    """One schema while it is made lawful, in place: objects stay the ones that they are, so a
    reference is a pair of objects until every one of them has its last place."""

    root: Schema
    lost: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    unbound: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    _seen: set[int] = attrs.field(factory=set, init=False)
    _bases: dict[int, str] = attrs.field(factory=dict, init=False)
    """The address of each object that has one of its own, or of the one around it."""
    _named: dict[str, list[object]] = attrs.field(factory=dict, init=False)
    """By address, by anchor, and by the name among definitions."""
    _targets: dict[tuple[int, str], object] = attrs.field(factory=dict, init=False)
    """What each reference leads to, found before anything is moved."""
    _references: list[tuple[Schema, Schema, str]] = attrs.field(factory=list, init=False)
    _waiting: list[tuple[Schema, str]] = attrs.field(factory=list, init=False)
    _negations: list[tuple[Schema, str]] = attrs.field(factory=list, init=False)
    """What is around the schema that is looked at, and forbids what it allows."""
    _negated: dict[int, tuple[Schema, str]] = attrs.field(factory=dict, init=False)
    _doomed: list[tuple[Schema, str]] = attrs.field(factory=list, init=False)
    """Negations of which a part is lost: what is left would forbid more."""

    def __attrs_post_init__(self) -> None:
        waiting: list[tuple[object, str]] = [(self.root, "")]
        referring: list[Schema] = []
        while waiting:
            node, base = waiting.pop()
            if isinstance(node, list):
                waiting += [(each, base) for each in node]
            elif isinstance(node, dict):
                base = self._name(node, base)
                waiting += [(each, base) for key, each in node.items() if key not in _VALUES]
                if any(isinstance(node.get(key), str) for key in _REFERENCES):
                    referring.append(node)
        for node in referring:
            for key in _REFERENCES:
                if key in node:
                    self._targets[id(node), key] = self._target(node, node[key])

    def rewrite(self) -> None:
        """Make everything lawful but the references, which are left out and remembered."""
        self._waiting.append((self.root, ""))
        while self._waiting:  # a target may stand where no schema is looked for
            node, path = self._waiting.pop()
            self._lawful(node, path, 0)

    def _name(self, node: Schema, base: str) -> str:
        for key in ("$id", "id"):
            if isinstance(name := node.get(key), str):
                address, anchor = urldefrag(joined(base, name))
                if anchor:
                    self._named.setdefault(f"#{anchor}", []).append(node)
                if address != base:
                    base = address
                    self._named.setdefault(address, []).append(node)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := node.get(key), str):
                self._named.setdefault(f"#{name}", []).append(node)
        for key in ("$defs", "definitions"):
            if isinstance(inside := node.get(key), dict):
                for name, each in inside.items():
                    self._named.setdefault(f"/{name}", []).append(each)
        self._bases[id(node)] = base
        return base

    # ------------------------------------------------------------------------- one schema

    def _lawful(self, node: object, path: str, depth: int) -> object:
        """The schema at ``path``, which is changed in place if it is an object."""
        if isinstance(node, bool) or (isinstance(node, dict) and id(node) in self._seen):
            return node
        if not isinstance(node, dict) or depth > MAX_DEPTH:
            self._lose(path, "")
            return True
        self._seen.add(id(node))
        self._rewrite_old(node)
        for key in list(node):
            value = node[key]
            if value is None and key not in ("const", "default"):
                del node[key]
            elif key in _NAMING:
                if not (key == "id" and isinstance(value, dict)):
                    del node[key]
            elif key in _REFERENCES:
                del node[key]
                self._refer(node, path, key)
            else:
                self._keyword(node, key, value, path, depth)
        self._note_unbound(node, path)
        return node

    def _keyword(self, node: Schema, key: str, value: object, path: str, depth: int) -> None:
        where = f"{path}.{key}" if path else key
        if key in ("not", "if"):
            self._negations.append((node, key))
            node[key] = self._lawful(value, where, depth + 1)
            self._negations.pop()
        elif key in _ONE:
            node[key] = self._lawful(value, where, depth + 1)
            if key == "propertyNames" and node[key] in (True, {}, {"type": "string"}):
                del node[key]  # as every name is
        elif key in _BY_NAME and isinstance(value, dict):
            if key == "properties":
                self._take_required(node, value)
            for name in value:
                value[name] = self._lawful(value[name], f"{where}.{name}", depth + 1)
        elif key in _SEVERAL and isinstance(value, list) and value:
            node[key] = [self._lawful(each, f"{where}[]", depth + 1) for each in value]
        elif (check := CHECKS.get(key)) is not None:
            kept = check(value)
            if kept is NOTHING:
                self._lose(path, key)
            if kept is NOTHING or kept is ANYTHING:
                del node[key]
            else:
                node[key] = kept
        elif key in _BY_NAME or key in _SEVERAL:
            self._lose(path, key)
            del node[key]

    def _rewrite_old(self, node: Schema) -> None:
        """Keywords of older drafts, under their newer names."""
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            flag = node.get(exclusive)
            if isinstance(flag, bool):
                del node[exclusive]
                if flag and bound in node:
                    node[exclusive] = node.pop(bound)
        if isinstance(node.get("items"), list):
            firsts, rest = node.pop("items"), node.pop("additionalItems", None)
            if firsts:
                node["prefixItems"] = firsts
            if rest is not None:
                node["items"] = rest
        if isinstance(node.get("required"), bool):
            del node["required"]  # of draft 3: the object around it has taken it
        if "divisibleBy" in node:
            node.setdefault("multipleOf", node.pop("divisibleBy"))
        dependencies = node.pop("dependencies", None)
        for name, each in dependencies.items() if isinstance(dependencies, dict) else ():
            kind = "dependentRequired" if isinstance(each, list) else "dependentSchemas"
            into = node.setdefault(kind, {})
            if isinstance(into, dict):
                into.setdefault(name, each)

    def _take_required(self, node: Schema, properties: Schema) -> None:
        """Return what draft 3 says in each property, as the list of the object."""
        names = [
            name
            for name, each in properties.items()
            if isinstance(each, dict) and each.get("required") is True
        ]
        given = node.get("required")
        if names and (given is None or isinstance(given, list)):
            node["required"] = [*(given or []), *names]  # doubles go when the list is checked

    def _note_unbound(self, node: Schema, path: str) -> None:
        for key in node.keys() & _NOT_IN_GRAMMARS:
            self.unbound.append((path, key))
        pattern = node.get("pattern")
        if node.get("uniqueItems") is True and node.get("maxItems") not in (0, 1):
            self.unbound.append((path, "uniqueItems"))
        if node.get("format", "date") not in KNOWN_FORMATS:
            self.unbound.append((path, "format"))
        if isinstance(pattern, str) and _LOOKS_AROUND.search(pattern):
            self.unbound.append((path, "pattern"))
        if "multipleOf" in node and not holds_multiples_of(node["multipleOf"]):
            self.unbound.append((path, "multipleOf"))
        for key in _COUNTS:
            if _is_over(node.get(key), MAX_COUNT):
                self.unbound.append((path, key))
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            bound = node.get(key)
            if isinstance(bound, int | float) and _is_over(bound, MAX_INTEGER):
                if (bound > 0) is not key.lower().endswith("minimum"):
                    continue  # wider than what is ever written
                self.unbound.append((path, key))
        self._note_property_counts(node, path)
        if isinstance(branches := node.get("oneOf"), list) and not self._are_apart(branches):
            self.unbound.append((path, "oneOf"))

    def _are_apart(self, branches: list[object]) -> bool:
        """Return whether it is plain that no value fits two of these: by their types, their values,
        or those of a property that each has to have."""
        parts = [self._targets.get((id(each), "$ref"), each) for each in branches]
        shapes = [part for part in parts if isinstance(part, dict)]
        names = {name for shape in shapes for name in _required_of(shape)}
        choices: list[Callable[[Schema], frozenset[str] | None]] = [
            _kinds_of,
            _values_of,
            *(partial(_values_at, name) for name in sorted(names)),
        ]
        return len(shapes) == len(parts) and any(
            _are_disjoint([choose(shape) for shape in shapes]) for choose in choices
        )

    def _note_property_counts(self, node: Schema, path: str) -> None:
        properties, required = node.get("properties", {}), node.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return
        num_free = len(properties.keys() - set(map(str, required)))
        least, most = node.get("minProperties", 0), node.get("maxProperties")
        counts = [key for key in ("minProperties", "maxProperties") if key in node]
        asks = _is_over(least, len(required)) or (
            most is not None and not _is_over(most, len(properties) - 1)
        )
        if num_free > MAX_FREE_NAMES and asks:
            self.unbound += [(path, key) for key in counts]

    def _lose(self, path: str, key: str) -> None:
        if not key:
            path, _, key = path.rpartition(".")
        self.lost.append((path, key))
        self._doomed += self._negations[:1]

    # ------------------------------------------------------------------------- references

    def _refer(self, node: Schema, path: str, key: str) -> None:
        target = self._targets.get((id(node), key))
        if isinstance(target, dict):
            self._references.append((node, target, path))
            self._negated.update({id(node): owner for owner in self._negations[:1]})
            self._waiting.append((target, path))
        elif target is not True:
            self._lose(path, key)

    def _target(self, node: Schema, reference: object) -> object:
        """Return what a reference leads to; None if that is nothing here."""
        if not isinstance(reference, str):
            return None
        base = self._bases.get(id(node), "")
        address, fragment = urldefrag(joined(base, reference))
        found = self._named.get(address, [])
        for start in [*found, *([self.root] if reference.startswith("#") or not address else [])]:
            target = at(start, unquote(fragment)) if fragment else start
            if target is not None:
                return target
        anchored = self._named.get(f"#{fragment}", []) if fragment else []
        if not anchored:  # a part of a larger document brings its definitions along
            anchored = self._named.get(f"/{last_name(reference)}", [])
        return anchored[0] if len(anchored) == 1 else None

    def write_references(self) -> None:
        """Write each reference as a pointer to where its target stands now.

        One that leads back to itself without going into a value is left out.
        """
        places = places_of(self.root, "#")
        endless = self._endless()
        for node, target, path in self._references:
            if id(node) in endless and id(target) in endless:
                self._lose(path, "$ref")
                self._doomed += [self._negated[id(node)]] if id(node) in self._negated else []
                continue
            if id(target) not in places:
                definitions = self.root.setdefault("$defs", {})
                assert isinstance(definitions, dict), "another is left out"
                name = f"moved-{len(places)}"
                definitions[name] = target
                places.update(places_of(target, f"#/$defs/{name}"))
            node["$ref"] = places[id(target)]
        for owner, key in self._doomed:
            owner.pop(key, None)

    def _endless(self) -> set[int]:
        """Schemas from which one comes, by references and choices alone, to where they stand."""
        leads_to: dict[int, list[int]] = {}
        come_from: dict[int, list[int]] = {}
        for node, target, _ in self._references:
            leads_to.setdefault(id(node), []).append(id(target))
        waiting: list[Schema] = [each for pair in self._references for each in pair[:2]]
        met = set[int]()
        while waiting:
            node = waiting.pop()
            if id(node) in met:
                continue
            met.add(id(node))
            inside = [each for each in _in_place(node) if isinstance(each, dict)]
            waiting += inside
            leads_to.setdefault(id(node), []).extend(map(id, inside))
        for one, others in leads_to.items():
            for other in others:
                come_from.setdefault(other, []).append(one)
        left = {one: len(others) for one, others in leads_to.items()}
        ended = [one for one, count in left.items() if count == 0]
        while ended:
            one = ended.pop()
            del left[one]
            for before in come_from.get(one, ()):
                left[before] -= 1
                if left[before] == 0:
                    ended.append(before)
        return set(left)


def _in_place(schema: Schema) -> Iterator[object]:
    """The schemas that judge the same value as this one."""
    for key in ("allOf", "anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            yield from branches
    for key in ("not", "if", "then", "else"):
        if key in schema:
            yield schema[key]
    dependent = schema.get("dependentSchemas")
    if isinstance(dependent, dict):
        yield from dependent.values()
