"""A fleet in TOML: ``[[deployments]]`` tables with the names of ``fleet_state``.

    note = "coder moves to 32k"

    [[deployments]]
    name = "coder"
    model = "hf:org/repo:Q4_K_M"                  # every text that `model set` takes
    parameters = { context_size = 32768, n_gpu_layers = "auto" }
    template = { file = "chat.jinja" }            # or the text itself
    aliases = ["gpt-4o"]
    adapters = [{ name = "sql", source = "hf:org/repo/sql.gguf", scale = 0.8 }]
    replicas = "1..3"
    where = ["gpu=yes"]
    rollout = { canary = 1, min_ready_s = 30 }

    [[deployments.presets]]
    name = "terse"
    system = { file = "terse.txt" }

Differences from JSON: models, projections and sources are texts, a template and the system text of
a preset may be in a file, and ``context_size`` and ``n_gpu_layers`` may be ``auto``. What a text
names, and what is in a file, is the caller's answer; here is no input or output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

import attrs

from paddler_trio.errors import WireError
from paddler_trio.wire import toml_text
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import DesiredModel
from paddler_trio.wire.shape import ShapeError, describe
from paddler_trio.wire.trio.adapters import MAX_ADAPTERS
from paddler_trio.wire.trio.fleet_state import (
    DEFAULT,
    MAX_DEPLOYMENTS,
    MAX_NOTE_CHARS,
    FleetState,
)

MAX_TOML_BYTES: Final = 1024 * 1024
AUTO: Final = "auto"
AUTOMATIC: Final = ("context_size", "n_gpu_layers")
"""Parameters that agents can choose by themselves."""

ReadSource: TypeAlias = Callable[[str], tuple[DesiredModel, DesiredModel | None]]
"""The model that a text names. For a repository with the projection chosen there, or NoModel;
otherwise with None. WireError says why there is no such model; it needs no place."""
ReadFile: TypeAlias = Callable[[str], str]
"""The text of a file; a relative path is relative to the TOML file. WireError."""


@attrs.frozen
class FleetFile:
    """The contents of a TOML document; ``note`` is empty if it has none."""

    state: FleetState
    note: str


def fleet_of_toml(text: str, *, read_source: ReadSource, read_file: ReadFile) -> FleetFile:
    """Read a document; each text of a source is asked for once.

    Raises:
      WireError: what is wrong, with the deployment, the field, the value and the limit.
    """
    size_bytes = len(text.encode(errors="replace"))
    if size_bytes > MAX_TOML_BYTES:
        raise WireError(f"the file has {size_bytes} bytes, the limit is {MAX_TOML_BYTES}")
    try:
        document = toml_text.loads(text)
    except RecursionError:
        raise WireError("TOML nested too deeply") from None
    except ValueError as error:  # that of TOML, and that of numbers with thousands of digits
        raise WireError(f"not valid TOML: {error}") from error
    for key in document:
        if key not in ("deployments", "note"):
            raise ShapeError(f"unknown field {key[:80]!r}, expected deployments or note")
    note = document.get("note", "")
    if type(note) is not str:
        raise ShapeError(f"expected a string, got {describe(note)}", "note")
    if len(note) > MAX_NOTE_CHARS:
        raise ShapeError(f"{len(note)} characters, the limit is {MAX_NOTE_CHARS}", "note")
    tables = document.get("deployments", [])
    if type(tables) is not list:
        raise ShapeError(f"expected [[deployments]], got {describe(tables)}", "deployments")
    if len(tables) > MAX_DEPLOYMENTS + 1:  # before any source is asked for
        raise ShapeError(
            f"{len(tables)} deployments, the limit is {MAX_DEPLOYMENTS} beside {DEFAULT}",
            "deployments",
        )
    reader = _Reader(read_source, read_file)
    plain = [reader.deployment(table, place) for place, table in enumerate(tables)]
    return FleetFile(structure({"deployments": plain}, FleetState), note)


@attrs.define
class _Reader:
    read_source: ReadSource
    read_file: ReadFile
    _known: dict[str, tuple[DesiredModel, DesiredModel | None]] = attrs.field(
        factory=dict, init=False
    )

    def deployment(self, table: object, place: int) -> object:
        """Return the JSON of a table; what is wrong in other ways is left for the reader of
        JSON."""
        if type(table) is not dict:
            return table
        plain = dict(table)
        name = table.get("name")
        with _named(name if isinstance(name, str) else f"number {place + 1}", place):
            if "model" in table:
                model, projection = self._source(table["model"], "model")
                plain["model"] = unstructure(model, DesiredModel)
                if projection is not None:
                    plain["projection"] = unstructure(projection, DesiredModel)
            if "projection" in table:
                plain["projection"] = self._file(table["projection"], "projection")
            if type(table.get("adapters")) is list:
                plain["adapters"] = self._adapters(table["adapters"])
            if type(table.get("template")) is dict:
                plain["template"] = self._text_of(table["template"], "template")
            if type(table.get("presets")) is list:
                plain["presets"] = [
                    self._preset(preset, at) for at, preset in enumerate(table["presets"])
                ]
            _move_automatic(plain)
        return plain

    def _source(self, text: object, *field: str | int) -> tuple[DesiredModel, DesiredModel | None]:
        if type(text) is not str:
            raise ShapeError(f"expected the text of a source, got {describe(text)}", *field)
        try:
            if text not in self._known:
                self._known[text] = self.read_source(text)
        except WireError as error:
            raise ShapeError(str(error), *field) from error
        return self._known[text]

    def _file(self, text: object, *field: str | int) -> object:
        """Return the JSON of a source that is a file, or the first of several."""
        model, is_repository = self._source(text, *field)
        if is_repository is not None:
            raise ShapeError("a repository: write hf:org/repo/file", *field)
        return unstructure(model, DesiredModel)

    def _adapters(self, tables: list[object]) -> list[object]:
        if len(tables) > MAX_ADAPTERS:  # before any source is asked for
            raise ShapeError(f"{len(tables)} adapters, the limit is {MAX_ADAPTERS}", "adapters")
        return [
            {**each, "source": self._file(each["source"], "source", place, "adapters")}
            if type(each) is dict and "source" in each
            else each
            for place, each in enumerate(tables)
        ]

    def _preset(self, preset: object, place: int) -> object:
        """Return the JSON of a preset, whose system text may be in a file."""
        if type(preset) is not dict or type(preset.get("system")) is not dict:
            return preset
        return {**preset, "system": self._text_of(preset["system"], "system", place, "presets")}

    def _text_of(self, table: dict[str, object], *where: str | int) -> str:
        path = table.get("file")
        if list(table) != ["file"] or not isinstance(path, str):
            raise ShapeError('expected a text or { file = "path" }', *where)
        try:
            return self.read_file(path)
        except WireError as error:
            raise ShapeError(str(error), *where) from error


@contextmanager
def _named(name: str, place: int) -> Iterator[None]:
    """Give ShapeErrors inside the block the deployment's name and place."""
    try:
        yield
    except ShapeError as error:
        error.text = f"deployment {name[:80]!r}: {error.text}"
        error.path += [place, "deployments"]
        raise


def _move_automatic(plain: dict[str, object]) -> None:
    """Put ``auto`` in place of a number where JSON has it: in the extras."""
    parameters = plain.get("parameters")
    if type(parameters) is not dict:
        return
    automatic = {name: True for name in AUTOMATIC if parameters.get(name) == AUTO}
    if not automatic:
        return
    plain["parameters"] = {k: v for k, v in parameters.items() if k not in automatic}
    extras = plain.get("extras", {})
    if type(extras) is not dict or type(extras.get("auto", {})) is not dict:
        return  # refused by its own field
    plain["extras"] = {**extras, "auto": {**extras.get("auto", {}), **automatic}}
