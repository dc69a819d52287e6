"""Pushing a model: its files hashed, what is missing sent to the balancer's store, then named."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import attrs
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from paddler_trio.cli.balancer_http import BalancerRefusedError, BalancerUnreachableError
from paddler_trio.cli.model.cache_display import ProgressTable, size_words
from paddler_trio.cli.model.store_client import MISMATCH, StoreClient
from paddler_trio.cli.terminal import print_json, printable
from paddler_trio.errors import ConfigurationError, WireError
from paddler_trio.models.hub.hub_choice import part_names, split_name
from paddler_trio.models.pushed.pushed_model import Manifest, PushedFile, pushed_name_problem

INTERVAL_S: Final = 0.25


class _Sink(Protocol):
    def look(self, fields: dict[str, object], *, is_step: bool) -> None: ...


@attrs.define
class PushDisplay:
    """Shows at most four times a second, and every step once.

    A step is another file, or something else done with it.
    """

    sink: _Sink
    _step: tuple[str, str] = attrs.field(default=("", ""), init=False)
    _began: tuple[float, int] = attrs.field(default=(0.0, 0), init=False)
    _shown_s: float = attrs.field(default=0.0, init=False)

    def show(self, phase: str, name: str, done_bytes: int, total_bytes: int) -> None:
        """So much of a file is done."""
        now_s = time.monotonic()
        is_step = (phase, name) != self._step
        if is_step:
            self._step, self._began = (phase, name), (now_s, done_bytes)
        elif now_s - self._shown_s < INTERVAL_S and done_bytes < total_bytes:
            return
        self._shown_s = now_s
        began_s, began_bytes = self._began
        speed = (done_bytes - began_bytes) / max(now_s - began_s, 1e-3)
        fields: dict[str, object] = {
            "phase": phase,
            "filename": name,
            "current_bytes": done_bytes,
            "total_bytes": total_bytes,
            "bytes_per_s": int(speed),
            "remaining_s": int((total_bytes - done_bytes) / speed) if speed > 0 else None,
        }
        self.sink.look(fields, is_step=is_step)

    def wait(self, name: str, why: str) -> None:
        """Nothing is done now."""
        self._step = ("waiting", name)
        fields: dict[str, object] = {"phase": why, "filename": name, "current_bytes": 0}
        self.sink.look(fields, is_step=True)

    def end(self) -> None:
        """All is done."""
        self._step = ("", "")


@contextmanager
def push_display(console: Console, *, as_json: bool) -> Iterator[PushDisplay]:
    """The display that fits where the output goes."""
    if as_json:
        yield PushDisplay(_Json())
    elif not console.is_terminal:
        yield PushDisplay(_Lines(console))
    else:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield PushDisplay(_Bar(live))


class _Json:
    def look(self, fields: dict[str, object], *, is_step: bool) -> None:
        print_json({"progress": fields})


@attrs.define
class _Lines:
    console: Console

    def look(self, fields: dict[str, object], *, is_step: bool) -> None:
        if is_step:
            total = fields.get("total_bytes")
            size = f" ({size_words(total)})" if isinstance(total, int) else ""
            words = f"{fields['filename']}{size}: {fields['phase']}"
            self.console.print(Text(printable(words)))


@attrs.define
class _Bar:
    live: Live

    def look(self, fields: dict[str, object], *, is_step: bool) -> None:
        table = ProgressTable()
        table.look({"agent": "push", "progress": fields})
        self.live.update(table.table(), refresh=True)


PIECE_BYTES: Final = 1024 * 1024
PROBE_BYTES: Final = 16 * 1024
RETRIES: Final = 10
"""In a row, without a byte more at the store."""
LONGEST_PAUSE_S: Final = 15.0
_MAGIC: Final = b"GGUF"
_AGAIN: Final = frozenset({408, 409, 425, 429, 502, 503, 504})
"""The store is starting, is busy, or has not noticed yet that the last upload broke off."""


@attrs.frozen
class LocalFile:
    """A file of this machine, under the name that it will have."""

    path: Path
    name: str
    size_bytes: int


@attrs.frozen
class PushedNames:
    """The names that the desired state has for what was pushed."""

    manifest: Manifest

    @property
    def model(self) -> str:
        return self.manifest.source(self.manifest.files[0])

    @property
    def projection(self) -> str | None:
        projection = self.manifest.projection
        return None if projection is None else self.manifest.source(projection)


def push_model(
    client: StoreClient,
    model: Path,
    projection: Path | None,
    *,
    name: str | None,
    display: PushDisplay,
) -> PushedNames:
    """Send what the store lacks of a model.

    Errors:
      typer.BadParameter: a file is not there, is no GGUF file, or cannot have this name.
      BalancerUnreachableError, BalancerRefusedError: it did not get there.
    """
    files = local_files(model, name)
    named_projection = None if projection is None else _local(projection, None, "--projection")
    everything = files if named_projection is None else [*files, named_projection]
    _find_store(client, model.name, display)  # before anything is hashed
    try:
        hashed = [_hashed(file, display) for file in everything]
        manifest = Manifest(
            tuple(hashed[: len(files)]), None if named_projection is None else hashed[-1]
        )
    except OSError as error:
        raise ConfigurationError(f"{error.filename or model}: {error.strerror or error}") from error
    except WireError as error:
        raise typer.BadParameter(str(error), param_hint="--projection") from error
    patience = _Patience(display)
    while True:
        for local, pushed in zip(everything, manifest.all_files, strict=True):
            _send(client, local, pushed, display)
        try:
            client.put_manifest(manifest.sha256, manifest.text)
            display.end()
            return PushedNames(manifest)
        except (BalancerRefusedError, BalancerUnreachableError) as error:
            patience.wait(model.name, error)  # a file may have gone for others, or the balancer


def _find_store(client: StoreClient, name: str, display: PushDisplay) -> None:
    """Wait for a store that is starting; what has none, or is not there, is an error at once."""
    patience = _Patience(display)
    while True:
        try:
            client.here_bytes("0" * 64)
        except BalancerRefusedError as error:
            patience.wait(name, error)
        else:
            return


@attrs.define
class _Patience:
    """Pauses between attempts, longer and longer, until there were too many."""

    display: PushDisplay
    failures: int = 0

    def wait(self, name: str, problem: BalancerRefusedError | BalancerUnreachableError) -> None:
        """Wait before the next attempt; raises ``problem`` if it would be no use."""
        if isinstance(problem, BalancerRefusedError) and problem.status not in _AGAIN:
            raise problem
        self.failures += 1
        if self.failures > RETRIES:
            raise problem
        pause_s = min(LONGEST_PAUSE_S, 0.5 * 2 ** (self.failures - 1))
        self.display.wait(name, f"{problem}; next attempt in {pause_s:.1f} s")
        time.sleep(pause_s)


def local_files(model: Path, name: str | None) -> list[LocalFile]:
    """All parts of the model that ``model`` is, or is a part of; typer.BadParameter."""
    parts = part_names(model.name)
    names = list(parts)
    if name is not None:
        base = name.removesuffix(".gguf")
        names = [f"{base}.gguf"]
        if len(parts) > 1:
            names = [f"{base}-{i:05}-of-{len(parts):05}.gguf" for i in range(1, len(parts) + 1)]
    return [
        _local(model.with_name(part), renamed, "FILE")
        for part, renamed in zip(parts, names, strict=True)
    ]


def _local(path: Path, name: str | None, hint: str) -> LocalFile:
    name = path.name if name is None else name
    problem = pushed_name_problem(name)
    if problem is not None:
        raise typer.BadParameter(f"{problem}; give --name", param_hint=hint)
    if split_name(name) is None:
        raise typer.BadParameter(f"{name} does not end in .gguf", param_hint=hint)
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
            size_bytes = file.seek(0, 2)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint=hint) from error
    if magic != _MAGIC:
        raise typer.BadParameter(f"{path} is no GGUF file", param_hint=hint)
    return LocalFile(path, name, size_bytes)


def _hashed(file: LocalFile, display: PushDisplay) -> PushedFile:
    digest, done = hashlib.sha256(), 0
    with file.path.open("rb", buffering=0) as data:
        while piece := data.read(4 * PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            display.show("hashing", file.name, done, file.size_bytes)
    if done != file.size_bytes:
        raise ConfigurationError(f"{file.path} changed while it was read: push it again")
    return PushedFile(file.name, file.size_bytes, digest.hexdigest())


def _send(client: StoreClient, local: LocalFile, pushed: PushedFile, display: PushDisplay) -> None:
    """Send one file, however often the connection breaks."""
    patience, furthest, has_restarted = _Patience(display), -1, False
    while True:
        start: int | None = 0
        try:
            start = client.here_bytes(pushed.sha256)
            if start is None:
                display.show("is there", local.name, local.size_bytes, local.size_bytes)
                return
            if start > furthest:
                patience.failures, furthest = 0, start
            # a refusal is read only by who is not still sending: so a little goes first
            start = min(start, local.size_bytes - 1)
            middle = min(start + PROBE_BYTES, local.size_bytes)
            for begin, end in ((start, middle), (middle, local.size_bytes)):
                if begin < end:
                    pieces = _pieces(local, begin, end, display)
                    client.put_blob(pushed.sha256, begin, end, local.size_bytes, pieces)
            return
        except BalancerRefusedError as error:
            if error.status != MISMATCH:
                patience.wait(local.name, error)
            elif start and not has_restarted:
                has_restarted, furthest = True, -1  # what was left of another time was damaged
            else:
                raise BalancerRefusedError(
                    error.status,
                    f"{error}; the file changed while it was sent, or was damaged on its way",
                ) from error
        except BalancerUnreachableError as error:
            patience.wait(local.name, error)


def _pieces(local: LocalFile, start: int, stop: int, display: PushDisplay) -> Iterator[bytes]:
    with local.path.open("rb", buffering=0) as data:
        data.seek(start)
        done = start
        display.show("sending", local.name, done, local.size_bytes)
        while done < stop:
            piece = data.read(min(PIECE_BYTES, stop - done))
            if not piece:
                raise ConfigurationError(f"{local.path} became shorter while it was sent")
            yield piece
            done += len(piece)
            display.show("sending", local.name, done, local.size_bytes)
