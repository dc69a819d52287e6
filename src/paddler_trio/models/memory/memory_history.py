"""Former loads, predicted and as they were, in a small file beside the cache. Blocking.

The file is a convenience: one that cannot be read is begun anew, one that cannot be written is
left as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import structlog

from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.memory.memory_correction import Observation
from paddler_trio.system.durable import write_durably
from paddler_trio.wire.engine.engine_pipe import LoadModel

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
