"""Correct predictions by what former loads took.

llama.cpp's own buffers are predicted exactly; what differs is beside them: the share that a GPU's
driver takes of each process, scratch that is allocated when it is first needed, fragmentation. So
what is learned is a difference, and it is only ever added: memory that a process has not touched
yet is no proof that it never will.

Former loads, predicted and as they were, in a small file beside the cache. Blocking.

The file is a convenience: one that cannot be read is begun anew, one that cannot be written is
left as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import structlog

from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.system.durable import write_durably
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
