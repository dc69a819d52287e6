"""Correct predictions by what former loads took.

llama.cpp's own buffers are predicted exactly; what differs is beside them: the share that a GPU's
driver takes of each process, scratch that is allocated when it is first needed, fragmentation. So
what is learned is a difference, and it is only ever added: memory that a process has not touched
yet is no proof that it never will.

Former loads, predicted and as they were, in a small file beside the cache. Blocking.

The file is a convenience: one that cannot be read is begun anew, one that cannot be written is
left as it is.

Answers of dry runs, for as long as they hold still: the next load of the same model need not
wait for another one.

A need depends on the parameters, on the files and on the devices. So it is kept for local files
until one of them is replaced or written to, on machines where all memory is the host's: what is
free there is read anew. What only a dry run shows (GPUs, RPC servers) is asked again each time.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import attrs
import structlog

from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.system.durable import write_durably
from paddler_trio.wire.engine.dry_run_frames import MeasureMemory, encode_question
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.memory_need import DeviceNeed, MemoryNeed, MemoryUse

MAX_SHARE: Final = 0.25
"""A correction is at most this part of the prediction that it corrects,"""
MAX_CORRECTION_BYTES: Final = 1 << 30
"""or this much: what is beyond is no property of the model but another process."""
MAX_CONSIDERED: Final = 5
"""Newest observations of each model."""
HOST: Final = "host"


@attrs.frozen
class Observation:
    """One load, predicted and as it was; bytes by device, the host's process as ``host``.

    Args:
      model: names the model's file and what it was loaded with; see :func:`model_key`.
      parameters: names what else it was loaded with.
    """

    model: str
    parameters: str
    predicted: dict[str, int]
    actual: dict[str, int]


def observation(model: str, parameters: str, need: MemoryNeed, use: MemoryUse) -> Observation:
    """Return what one load teaches.

    Args:
      need: as it was predicted; its own corrections do not count, nor caches, which are empty yet.
      use: as the engine reported it when it was ready.
    """
    predicted = {
        device.name: device.needed - device.correction
        for device in need.devices
        if device.kind != "cpu"
    }
    actual = {name: taken for name, taken in use.taken.items() if name in predicted}
    caches = need.host.prefixes + need.host.images
    predicted[HOST] = need.host_needed - need.host.correction - caches
    # of a file whose tensors were laid out anew the pages are still mapped; nobody needs them
    surplus = max(0, _host_weights(use.devices) - _host_weights(need.devices))
    actual[HOST] = use.resident + max(0, use.mapped - surplus)
    return Observation(model, parameters, {name: predicted[name] for name in actual}, actual)


def corrected(
    need: MemoryNeed, model: str, parameters: str, observations: Sequence[Observation]
) -> MemoryNeed:
    """Return ``need`` with what former loads took beyond their predictions, oldest first.

    Of the same model with the same parameters, else of the same model, else, on a GPU, of any
    model: the median of the newest ones. A GPU that was never seen, and the host's process for a
    model that was never seen, are left as they are.
    """
    alike = [seen for seen in observations if seen.model == model]
    same = [seen for seen in alike if seen.parameters == parameters]
    devices = tuple(
        device if device.kind == "cpu" else _corrected_device(device, same or alike or observations)
        for device in need.devices
    )
    excess = _excess(HOST, same or alike)
    host = attrs.evolve(need.host, correction=_bounded(excess, need.host_needed))
    return attrs.evolve(need, devices=devices, host=host)


def _host_weights(devices: Iterable[DeviceNeed]) -> int:
    return sum(device.weights for device in devices if device.kind == "cpu")


def _corrected_device(device: DeviceNeed, seen: Iterable[Observation]) -> DeviceNeed:
    if not device.needed:
        return device  # nothing is loaded there
    return attrs.evolve(device, correction=_bounded(_excess(device.name, seen), device.needed))


def _excess(name: str, observations: Iterable[Observation]) -> int:
    differences = [
        seen.actual[name] - seen.predicted[name]
        for seen in observations
        if name in seen.actual and seen.predicted.get(name)
    ]
    return int(median(differences[-MAX_CONSIDERED:])) if differences else 0


def _bounded(excess: int, predicted: int) -> int:
    return max(0, min(excess, max(int(predicted * MAX_SHARE), MAX_CORRECTION_BYTES)))


log = structlog.get_logger("memory")

FILE_NAME: Final = "memory.json"
MAX_OBSERVATIONS: Final = 200
"""The oldest are forgotten."""
MAX_FILE_BYTES: Final = 1 << 20
_MAX_DEVICES: Final = 64


def model_key(parts: Sequence[str]) -> str:
    """Return a name of a model by the names and sizes of its files, wherever they lie."""
    sizes = [(Path(path).name, Path(path).stat().st_size) for path in parts]  # sparse ones too
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:32]


def parameters_key(load: LoadModel) -> str:
    """Return a name of everything else that memory depends on, in any order of loads."""
    fields = attrs.asdict(load)
    for name in ("model_path", "threads", "package_version"):
        del fields[name]
    adapters = fields.pop("adapters")
    if adapters:
        fields["adapters"] = [Path(path).name for path in adapters]
    projection = fields.pop("projection_path")
    fields["projection"] = None if projection is None else Path(projection).name
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


@attrs.frozen
class MemoryHistory:
    """See the module docstring."""

    path: Path

    @classmethod
    def beside_cache(cls, hub: HubSettings) -> MemoryHistory:
        """Return the history that lies where files of URLs go, one folder up."""
        return cls(hub.url_cache.parent / FILE_NAME)

    def read(self) -> list[Observation]:
        """Return all observations, oldest first; none if there is no such file, or it is none of
        ours."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            rows = json.loads(data) if len(data) <= MAX_FILE_BYTES else None
            if not isinstance(rows, list):
                raise TypeError("no list")
            return [_observation(row) for row in rows[-MAX_OBSERVATIONS:]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            log.warning("former loads cannot be read", path=str(self.path), reason=str(error))
            return []

    def add(self, seen: Observation) -> None:
        """Remember one more. Two processes that do so at once may lose one of the two."""
        kept = [*self.read(), seen][-MAX_OBSERVATIONS:]
        data = json.dumps([attrs.asdict(row) for row in kept], indent=1).encode()
        try:
            write_durably(self.path, data)
        except OSError as error:  # a read-only cache: the next prediction is a little worse
            log.warning("this load is not remembered", path=str(self.path), reason=error.strerror)


def _observation(row: dict[str, object]) -> Observation:
    model, parameters = row["model"], row["parameters"]
    if not isinstance(model, str) or not isinstance(parameters, str):
        raise TypeError("a load without names")
    return Observation(model, parameters, _sizes(row["predicted"]), _sizes(row["actual"]))


def _sizes(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > _MAX_DEVICES:
        raise TypeError("no sizes by device")
    if any(type(size) is not int for size in value.values()):
        raise TypeError("a size that is no number")
    return value


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
