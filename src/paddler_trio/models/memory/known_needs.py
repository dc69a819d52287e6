"""Answers of dry runs, for as long as they hold still: the next load of the same model need not
wait for another one.

A need depends on the parameters, on the files and on the devices. So it is kept for local files
until one of them is replaced or written to, on machines where all memory is the host's: what is
free there is read anew. What only a dry run shows (GPUs, RPC servers) is asked again each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from paddler_trio.wire.engine.dry_run_frames import MeasureMemory, encode_question
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import MemoryNeed

MAX_NEEDS: Final = 64
_OF_HOST: Final = frozenset({"cpu", "accel"})

Question: TypeAlias = tuple[bytes, tuple[tuple[int, ...], ...]]
"""The question, and the identities of the files."""


def question_of(load: LoadModel, parts: Sequence[str]) -> Question | None:
    """Return a question whose answer can be kept; None for others. Blocking.

    Args:
      parts: all files of the model; they are complete.
    """
    if load.settings.rpc or load.settings.lora or load.settings.draft_model is not None:
        return None
    files = [*parts, *filter(None, [load.projection_path]), *load.adapters]
    try:
        found = [Path(file).stat() for file in files]
    except OSError:
        return None
    return encode_question(MeasureMemory(load, list(parts), {})), tuple(
        (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found
    )


@attrs.define(eq=False)
class KnownNeeds:
    """The last answers, by question.

    Args:
      free_memory: of the host, in bytes; None where it is unknown.
    """

    free_memory: Callable[[], int | None]
    _needs: OrderedDict[Question, MemoryNeed] = attrs.field(factory=OrderedDict, init=False)

    def find(self, question: Question | None) -> MemoryNeed | None:
        """Return the answer with what is free now; None if it has to be asked. Blocking."""
        need = None if question is None else self._needs.get(question)
        free = None if need is None else self.free_memory()
        if question is None or need is None or free is None:
            return None
        self._needs.move_to_end(question)
        devices = tuple(
            attrs.evolve(device, free=free) if device.kind == "cpu" else device
            for device in need.devices
        )
        return attrs.evolve(need, devices=devices)

    def keep(self, question: Question | None, need: MemoryNeed) -> None:
        """Keep an answer, unless what was free decided about it, or other memory than the host's
        counts."""
        if question is None or need.is_extrapolated:
            return
        if any(device.kind not in _OF_HOST for device in need.devices):
            return
        self._needs[question] = need
        self._needs.move_to_end(question)
        if len(self._needs) > MAX_NEEDS:
            self._needs.popitem(last=False)
