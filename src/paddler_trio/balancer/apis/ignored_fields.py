"""Fields that change nothing of an answer, and the header that reports them. Pure.

Programs send fields of other servers: labels, hints, settings of another router. An answer without
them is complete all the same, so they are ignored, and every response names them in
``X-Paddler-Ignored-Fields``. With ``--strict-openai-fields`` they are refused instead.
"""

from __future__ import annotations

import re

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.wire.json_schema import ANSWER_SCHEMA, TOOL_SCHEMA
from paddler_trio.wire.paddler.results import MAX_UNBOUND

HEADER = b"x-paddler-ignored-fields"
MAX_MET = 1024
MAX_NAMES = 32
MAX_NAME_CHARS = 160
MAX_HEADER_BYTES = 1024
_MORE = "..."
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_INDEX = re.compile(r"\[\d+\]")
_STEP = re.compile(r"[^.\[\]]+")
_BETWEEN = frozenset({"properties", "?defs", "definitions"})
_SCHEMAS = (ANSWER_SCHEMA, TOOL_SCHEMA)
_SCHEMA_FIELDS = (
    ["schema"], ["parameters"], ["input_schema"], ["json_schema"], ["format"],
)  # fmt: skip


@attrs.define
class IgnoredFields:
    """Those of one request, as they are met.

    Args:
      is_strict: they are refused.
    """

    is_strict: bool = False
    names: list[str] = attrs.field(factory=list, init=False)
    """Paths, each once, without the numbers of list entries: ``messages[].id``."""
    _num_met: int = attrs.field(default=0, init=False)
    _is_more: bool = attrs.field(default=False, init=False)
    """There may be others, which are not kept."""

    def unknown(self, path: str, name: str) -> None:
        """Note a member ``name`` of the object at ``path`` that no table has.

        Errors:
          ApiError: 400 if they are refused.
        """
        if self.is_strict:
            where = member(path, name)
            raise ApiError(
                400, f"{where} is not a known field", param=where, code="unknown_parameter"
            )
        self.add(path, name)

    def add(self, path: str, name: str) -> None:
        """Report this one; a long name is cut, and of many only the first are looked at."""
        self._num_met += 1
        if len(self.names) >= MAX_NAMES or self._num_met > MAX_MET:
            self._is_more = True
            return
        plain = _plain(member(path[:MAX_NAME_CHARS], name[:MAX_NAME_CHARS]))
        if plain not in self.names:
            self.names.append(plain)

    def unbound(self, places: object) -> None:
        """Report places in schemas that an agent could not hold an answer to, but for those that
        are reported already; what is no list of them is passed over."""
        for place in places[:MAX_UNBOUND] if isinstance(places, list) else ():
            if isinstance(place, str) and not self._has(place):
                self.add("", place)

    def _has(self, place: str) -> bool:
        """Return whether it is reported under the name that the client's API has for it."""
        schema = next((each for each in _SCHEMAS if place.startswith(f"{each}.")), "")
        inside = _steps(place.removeprefix(schema))
        return bool(schema) and any(
            name.startswith("tools") is (schema == TOOL_SCHEMA)
            and (steps := _steps(name))[-len(inside) :] == inside
            and steps[: -len(inside)][-1:] in _SCHEMA_FIELDS
            for name in self.names
        )

    def header(self) -> bytes | None:
        """Return the value of the response's header; None if nothing was ignored."""
        if not self.names:
            return None
        shown, size_bytes = list[str](), 0
        is_more = self._is_more
        for name in self.names:
            size_bytes += len(name) + len(", ")
            if size_bytes > MAX_HEADER_BYTES - len(_MORE):
                is_more = True
                break
            shown.append(name)
        return ", ".join([*shown, _MORE] if is_more else shown).encode()


def _plain(name: str) -> str:
    return _UNSAFE.sub("?", _INDEX.sub("[]", name))[:MAX_NAME_CHARS]


def _steps(name: str) -> list[str]:
    """Return the parts of a path in a schema, without the keywords between names."""
    return [step for step in _STEP.findall(_plain(name)) if step not in _BETWEEN]


STRICT = IgnoredFields(is_strict=True)
"""For readers without a response to report in; it never keeps a name."""


def member(path: str, name: str) -> str:
    """The path of a member."""
    return f"{path}.{name}" if path else name


@attrs.define
class IgnoredFieldsLog:
    """Remember which names were logged: each once in the life of the process, ``max_names`` at
    most."""

    max_names: int = 256
    _names: set[str] = attrs.field(factory=set, init=False)

    def unlogged(self, ignored: IgnoredFields) -> list[str]:
        """Return those to log now; they count as logged from here on."""
        fresh = [name for name in ignored.names if name not in self._names]
        fresh = fresh[: self.max_names - len(self._names)]
        self._names.update(fresh)
        return fresh
