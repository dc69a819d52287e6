"""Presets of a deployment: models with names of their own over one set of weights.

A preset says what of a request it fills in, and what of it is set whatever the request says. No
agent hears of one: the balancer makes the request of it, so that changing it loads nothing.

    [[deployments.presets]]
    name = "terse"
    system = "Answer in one sentence."
    sampling = { temperature = 0.2 }
    max_tokens = { default = 64, most = 256 }
    forced = ["temperature"]
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

import attrs

from paddler_trio.wire.codec import canonical, dumps, unstructure
from paddler_trio.wire.engine.sampler_stages import PARAMETERS, STAGES
from paddler_trio.wire.scalars import IntRange
from paddler_trio.wire.shape import (
    OMITTED,
    Reader,
    ShapeError,
    describe,
    record_reader,
    record_writer,
    register,
)
from paddler_trio.wire.trio.adapters import MAX_CHOSEN, AdapterChoice
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT
from paddler_trio.wire.trio.work import Constraint, SamplingOverrides

MAX_PRESETS: Final = 64
"""Of one deployment."""
MAX_SYSTEM_CHARS: Final = 65_536
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 256
MAX_TOOLS: Final = 64
MAX_FILTERS: Final = 64
MAX_JSON_BYTES: Final = 131_072
"""Of one preset as it is written; every request may carry as much to its agent."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
"""Also of an alias."""
_FIELD_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_NEEDED: Final = frozenset({"model", "messages", "prompt", "input", "input_prefix", "input_suffix"})
"""Fields without which there is nothing to answer."""

FreeObject: TypeAlias = Mapping[str, object]
"""JSON that is the template's or the model's to read."""
Plain: TypeAlias = dict[str, Any]
"""An object of JSON as it came."""
TokenCount: TypeAlias = Annotated[int, IntRange(1, 2**31 - 1)]


class SystemPlace(StrEnum):
    """Places of a preset's system text: in front of the client's, or instead of it."""

    BEFORE = "before"
    INSTEAD = "instead"


@attrs.frozen(kw_only=True)
class TokenBounds:
    """Bounds on the tokens of an answer.

    Args:
      default: if the request does not say; None for ``most``.
      least: a request that asks for fewer gets so many.
      most: a request that asks for more gets so many.
    """

    default: TokenCount | None = attrs.field(default=None, metadata=OMITTED)
    least: TokenCount | None = attrs.field(default=None, metadata=OMITTED)
    most: TokenCount | None = attrs.field(default=None, metadata=OMITTED)

    def __attrs_post_init__(self) -> None:
        least, most = self.least or 1, self.most or 2**31 - 1
        if least > most:
            raise ShapeError(f"least is {least}, must be at most most, which is {most}", "least")
        if self.default is not None and not least <= self.default <= most:
            raise ShapeError(f"default is {self.default}, must be {least} to {most}", "default")

    def of(self, asked: int | None) -> int | None:
        """Return how many a request gets that asks for ``asked``; None for as many as fit."""
        if asked is None:
            return self.most if self.default is None else self.default
        enough = max(asked, self.least or asked)
        return enough if self.most is None else min(enough, self.most)


@attrs.frozen(kw_only=True)
class Preset:
    """See the module docstring.

    Args:
      name: what requests name as their model.
      system: the text that every conversation begins with; prompts that are not rendered have no
        place for it, and are refused.
      system_place: whether the client's own system text stays.
      sampling: where the request does not say.
      thinking: whether to reason, if the request does not say.
      max_reasoning_tokens: if the request does not bound them.
      stop: texts that end an answer, beside those of the request.
      tools: what may be called, if the request has no tools; in the shape of OpenAI's.
      constraint: what the answer must look like, if the request does not say.
      lora: adapters and how strongly they count, if the request does not choose.
      template_kwargs: variables of the chat template; the request's come before them.
      forced: what is the preset's whatever the request says: fields above, or names in sampling.
      ignore: fields of a request that are left out, by their names in its API.
      refuse: fields that a request may not have.

    Raises:
      ShapeError: a value beyond its limit, with the name of its field.
    """

    name: str
    system: str | None = attrs.field(default=None, metadata=OMITTED)
    system_place: SystemPlace = attrs.field(default=SystemPlace.BEFORE, metadata=OMITTED)
    sampling: SamplingOverrides = attrs.field(default=SamplingOverrides(), metadata=OMITTED)
    thinking: bool | None = attrs.field(default=None, metadata=OMITTED)
    max_reasoning_tokens: TokenCount | None = attrs.field(default=None, metadata=OMITTED)
    stop: tuple[str, ...] = attrs.field(default=(), metadata=OMITTED)
    max_tokens: TokenBounds = attrs.field(default=TokenBounds(), metadata=OMITTED)
    tools: tuple[FreeObject, ...] = attrs.field(default=(), metadata=OMITTED, hash=False)
    constraint: Constraint | None = attrs.field(default=None, metadata=OMITTED)
    lora: tuple[AdapterChoice, ...] = attrs.field(default=(), metadata=OMITTED)
    template_kwargs: FreeObject = attrs.field(
        default=MappingProxyType({}), metadata=OMITTED, hash=False
    )
    forced: tuple[str, ...] = attrs.field(default=(), metadata=OMITTED)
    ignore: tuple[str, ...] = attrs.field(default=(), metadata=OMITTED)
    refuse: tuple[str, ...] = attrs.field(default=(), metadata=OMITTED)

    def __attrs_post_init__(self) -> None:
        if NAME.fullmatch(self.name) is None or self.name == DEFAULT_DEPLOYMENT:
            raise ShapeError(
                f"{self.name[:160]!r} cannot name a preset: 1 to 128 letters, digits and "
                f"._:/@+-, the first one a letter or digit, and not {DEFAULT_DEPLOYMENT!r}",
                "name",
            )
        _check_chars(self.system or "", MAX_SYSTEM_CHARS, "system")
        for name, most in _MOST_ENTRIES.items():
            if len(getattr(self, name)) > most:
                raise ShapeError(f"{len(getattr(self, name))} entries, the limit is {most}", name)
        for place, text in enumerate(self.stop):
            if not text:
                raise ShapeError("an empty text ends nothing", place, "stop")
            _check_chars(text, MAX_STOP_CHARS, place, "stop")
        _check_sampling(self.sampling)
        for place, tool in enumerate(self.tools):
            _check_tool(tool, place)
        self._check_filters()
        size_bytes = len(dumps(unstructure(self)))
        if size_bytes > MAX_JSON_BYTES:
            raise ShapeError(f"the preset has {size_bytes} bytes, the limit is {MAX_JSON_BYTES}")

    def _check_filters(self) -> None:
        for place, name in enumerate(self.forced):
            if name not in self.settable:
                close = _suggestion(name, self.settable)
                raise ShapeError(
                    f"{name[:80]!r} is nothing that this preset sets{close}", place, "forced"
                )
        for field in ("ignore", "refuse"):
            for place, name in enumerate(getattr(self, field)):
                if _FIELD_PATH.fullmatch(name) is None or name in _NEEDED:
                    why = "is needed" if name in _NEEDED else "is no name of a field"
                    raise ShapeError(f"{name[:80]!r} {why}", place, field)

    @property
    def settable(self) -> frozenset[str]:
        """Return the names of what it sets, those of sampling one by one."""
        return frozenset(
            name for name in _FORCEABLE if getattr(self, name) not in (None, (), {})
        ) | frozenset(self.sampling_values)

    @property
    def sampling_values(self) -> dict[str, Any]:  # of as many types as there are fields
        """Return the settings of sampling that it has, by their names."""
        return {
            field.name: getattr(self.sampling, field.name)
            for field in attrs.fields(SamplingOverrides)
            if getattr(self.sampling, field.name) != field.default
        }

    @property
    def is_for_conversations(self) -> bool:
        """Return whether it says what only a conversation has a place for."""
        return bool(self.system or self.tools)

    @property
    def canonical(self) -> bytes:
        """Return it as text that is equal for equal presets."""
        return canonical(unstructure(self))


_MOST_ENTRIES: Final = {
    "stop": MAX_STOPS,
    "tools": MAX_TOOLS,
    "lora": MAX_CHOSEN,
    "template_kwargs": MAX_FILTERS,
    "forced": MAX_FILTERS,
    "ignore": MAX_FILTERS,
    "refuse": MAX_FILTERS,
}
_FORCEABLE: Final = (
    *("thinking", "max_reasoning_tokens", "stop", "tools", "constraint", "lora"),
    "template_kwargs",
)


def _check_chars(text: str, most: int, *place: str | int) -> None:
    if len(text) > most:
        raise ShapeError(f"{len(text)} characters, the limit is {most}", *place)


def _check_sampling(sampling: SamplingOverrides) -> None:
    for name, parameter in PARAMETERS.items():
        value = getattr(sampling, name, None)
        problem = None if value is None else parameter.problem(value)
        if problem is not None:
            raise ShapeError(problem, name, "sampling")
    for place, stage in enumerate(sampling.samplers or ()):
        if stage not in STAGES:
            close = _suggestion(stage, STAGES)
            raise ShapeError(
                f"{stage[:80]!r} is no stage{close}; there are {', '.join(STAGES)}",
                *(place, "samplers", "sampling"),
            )


def _check_tool(tool: FreeObject, place: int) -> None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if tool.get("type") != "function" or not isinstance(name, str) or not name:
        raise ShapeError(
            'a tool is {"type": "function", "function": {"name", "description", "parameters"}}',
            *(place, "tools"),
        )


# --------------------------------------------------------------------------------- as JSON


def _suggestion(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name[:80], sorted(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _suggesting(
    cls: type[attrs.AttrsInstance], prepare: Callable[[Plain], Plain]
) -> Callable[[object], Reader]:
    """Make readers that refuse an unknown field with the name of a similar one."""
    known = tuple(field.name for field in attrs.fields(cls))

    def make(_: object) -> Reader:
        read_record = record_reader(cls)

        def read(value: object, shape: object) -> object:
            if type(value) is not dict:
                raise ShapeError(f"expected an object, got {describe(value)}")
            plain = prepare(value)
            for key in plain:
                if key not in known:
                    raise ShapeError(f"unknown field {key[:80]!r}{_suggestion(key, known)}")
            return read_record(plain, shape)

        return read

    return make


_NATIVE: Final = {each.server_name: each.name for each in PARAMETERS.values()}


def _by_native_names(sampling: Plain) -> Plain:
    """Take llama-server's names of parameters, too."""
    plain: Plain = {}
    for key, value in sampling.items():
        name = _NATIVE.get(key, key)
        if name in plain:
            raise ShapeError(f"{key[:80]!r} is {name!r}, which is there already", key)
        plain[name] = value
    return plain


def _loosely(preset: Plain) -> Plain:
    """Take one text for a list of them, a number for a default, and a schema that is no text."""
    plain = dict(preset)
    for name in ("stop", "forced", "ignore", "refuse"):
        if isinstance(plain.get(name), str):
            plain[name] = [plain[name]]
    if type(plain.get("max_tokens")) is int:
        plain["max_tokens"] = {"default": plain["max_tokens"]}
    constraint = plain.get("constraint")
    if isinstance(constraint, dict):
        if isinstance(constraint.get("schema"), dict):
            plain["constraint"] = {**constraint, "schema": dumps(constraint["schema"]).decode()}
        elif constraint.get("type") == "gbnf":
            plain["constraint"] = {"root": "root", **constraint}
    sampling = plain.get("sampling")
    if isinstance(sampling, dict):
        try:
            plain["sampling"] = _by_native_names(sampling)
            for key in plain["sampling"]:
                if key not in _SAMPLING:
                    raise ShapeError(f"unknown field {key[:80]!r}{_suggestion(key, _SAMPLING)}")
        except ShapeError as error:
            error.path.append("sampling")
            raise
    if isinstance(plain.get("forced"), list):
        plain["forced"] = [
            _NATIVE.get(name, name) if isinstance(name, str) else name for name in plain["forced"]
        ]
    return plain


_SAMPLING: Final = frozenset(field.name for field in attrs.fields(SamplingOverrides))


def _named(shape: object) -> Reader:
    """Return a reader of a preset that puts its name in front of whatever is wrong."""
    read_preset = _suggesting(Preset, _loosely)(shape)

    def read(value: object, shape: object) -> object:
        try:
            return read_preset(value, shape)
        except ShapeError as error:
            name = value.get("name") if isinstance(value, dict) else None
            if isinstance(name, str):
                error.text = f"preset {name[:80]!r}: {error.text}"
            raise

    return read


register(Preset, _named, lambda _: record_writer(Preset))
register(TokenBounds, _suggesting(TokenBounds, dict), lambda _: record_writer(TokenBounds))
