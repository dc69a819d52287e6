"""LoRA adapters of one model: those that always count, and those that sequences choose.

llama.cpp applies adapters to a context, so all sequences of one pass have the same. After they have
changed, the next pass reserves its graphs anew, which takes some milliseconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from paddler_trio.errors import EngineError
from paddler_trio.scheduler.batching.sequences import AdapterScales
from paddler_trio.system.llama_library import lib
from paddler_trio.wire.engine.engine_settings import EngineSettings


class Adapters:
    """The adapters of a loaded model. Not safe for use by several threads."""

    def __init__(self, model: object) -> None:
        self._model = model
        self._always: list[tuple[object, float]] = []
        self._chosen: list[object] = []
        self._names: list[tuple[str, int, int]] = []
        self._in_force: AdapterScales | None = None
        self.switch_ms = 0.0
        """The time by which a pass is longer that comes after a change."""

    def load(self, settings: EngineSettings, paths: Sequence[str] = ()) -> None:
        """Read the adapters of the settings, which always count, and those at ``paths``, which are
        chosen by their places; EngineError (permanent)."""
        self._always = [(self._read(path), scale) for path, scale in read_loras(settings)]
        self._chosen = [self._read(path) for path in paths]
        found = [Path(path).stat() for path in paths]
        self._names = [
            (path, file.st_size, file.st_mtime_ns) for path, file in zip(paths, found, strict=True)
        ]
        self._in_force = None

    def key(self, chosen: AdapterScales) -> str:
        """Return a text that no other choice has, nor begins with: cells are only of use to
        sequences of the same files and scales."""
        return repr(tuple((*self._names[place], scale) for place, scale in chosen))

    def apply(self, context: object, chosen: AdapterScales) -> bool:
        """Let these adapters change what ``context`` computes, and no others but those that always
        count; True if they are not the same as before."""
        if chosen == self._in_force:
            return False
        self._in_force = chosen
        found = [*self._always, *((self._chosen[place], scale) for place, scale in chosen)]
        pointers = (lib.llama_adapter_lora_p_ctypes * len(found))(*(each for each, _ in found))
        scales = (ctypes.c_float * len(found))(*(scale for _, scale in found))
        lib.llama_set_adapters_lora(context, pointers, len(found), scales)
        return True

    def __len__(self) -> int:
        """Return how many there are to choose from."""
        return len(self._chosen)

    def _read(self, path: str) -> object:
        if not Path(path).is_file():
            raise EngineError(f"lora: there is no file at {path}", permanent=True)
        adapter = lib.llama_adapter_lora_init(self._model, path.encode())
        if not adapter:
            raise EngineError(f"llama.cpp cannot use the LoRA adapter {path}", permanent=True)
        if lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
            raise EngineError(
                f"the LoRA adapter {path} begins to count in the middle of a prompt (aLoRA), "
                "which is not supported",
                permanent=True,
            )
        return adapter


def read_loras(settings: EngineSettings) -> list[tuple[str, float]]:
    """Return paths and scales; EngineError (permanent) where a scale is no number or a file is
    missing."""
    found: list[tuple[str, float]] = []
    for text in settings.lora:
        path, scale = text, 1.0
        head, equals, tail = text.rpartition("=")
        if equals and not Path(text).is_file():
            path = head
            try:
                scale = float(tail)
            except ValueError:
                raise EngineError(
                    f"lora {text!r}: write PATH or PATH=SCALE with a number", permanent=True
                ) from None
        if not Path(path).is_file():
            raise EngineError(f"lora: there is no file at {path}", permanent=True)
        found.append((path, scale))
    return found
