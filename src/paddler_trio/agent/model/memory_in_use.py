"""Account for what the engines of one agent hold together, and what that means for one more of
them.

The system counts pages of mapped files, weights that is, as free memory, also while an engine
computes with them. So a model that is loaded beside engines which stay must not be given theirs.
Two engines that map the same file have its pages together.
"""

from __future__ import annotations

import weakref
from collections import Counter

import attrs
import trio

from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.model_fit import OF_HOST, Held, Judged, rooms_of
from paddler_trio.scheduler.fit.fit_values import HOST
from paddler_trio.scheduler.fit.reserves import MemoryLimits
from paddler_trio.system.machine import held_memory_bytes
from paddler_trio.wire.trio.fit_messages import DeviceRoom


@attrs.define(eq=False)
class MemoryInUse:
    """The memory that all instances of one agent hold; ``owner`` is the model server that an engine
    belongs to."""

    _engines: dict[EngineProcess, object] = attrs.field(factory=dict, init=False)
    _statuses: weakref.WeakSet[AgentStatus] = attrs.field(factory=weakref.WeakSet, init=False)
    _room: tuple[DeviceRoom, ...] = attrs.field(default=(), init=False)

    def show_room_in(self, status: AgentStatus) -> None:
        """Report what models may take in all in this status, from now on, as long as it lives."""
        status.room = self._room
        self._statuses.add(status)

    def begins(self, engine: EngineProcess, owner: object) -> None:
        """Note that this engine is being loaded."""
        self._engines[engine] = owner

    def ends(self, engine: EngineProcess) -> None:
        self._engines.pop(engine, None)

    async def held(self, owner: object, path: str, *, keeps_own: bool = False) -> Held:
        """Return what a model of ``owner`` in the file ``path`` finds: what is given back before it
        is loaded, and what stays beside it.

        Args:
          keeps_own: the owner's engines stay too.
        """
        given_back: list[Held] = []
        staying: list[Held] = []
        mapped: dict[str, int] = {}
        for engine, owned_by in list(self._engines.items()):
            stays = keeps_own or owned_by is not owner
            (staying if stays else given_back).append(await held_memory(engine))
            if stays:
                file = engine.load.model_path
                mapped[file] = max(mapped.get(file, 0), _mapped_bytes(engine))
        in_use = sum(size for file, size in mapped.items() if file != path)
        beside = Counter({HOST: sum(mapped.values())})
        for each in staying:
            beside.update({device: size or 0 for device, size in each.bytes_by_device.items()})
        total = _sum(given_back)
        return attrs.evolve(total, beside=beside, in_use={HOST: in_use})

    async def note_room(self, limits: MemoryLimits, judged: Judged) -> None:
        """Report what models may take in all, from what a dry run saw of the devices."""
        everything = _sum([await held_memory(engine) for engine in list(self._engines)])
        self._room = tuple(
            DeviceRoom(device=name, most=room.available_bytes)
            for name, room in rooms_of(judged.need, limits, everything).items()
            if room.free_bytes is not None and room.available_bytes is not None
        )
        for status in self._statuses:
            status.room = self._room


def _mapped_bytes(engine: EngineProcess) -> int:
    """Return the bytes of weights that count as free; locked ones do not, and those of a GPU are
    not needed here."""
    memory = None if engine.ready is None else engine.ready.memory
    return 0 if memory is None or engine.load.settings.use_mlock else memory.mapped


def _sum(parts: list[Held]) -> Held:
    """Add up what is held; on a device where one part is unknown, the sum is."""
    devices = dict.fromkeys(device for part in parts for device in part.bytes_by_device)
    held: dict[str, int | None] = {device: _added(parts, device) for device in devices}
    others = 0 if all(part.others == 0 for part in parts) else None
    return Held(held, others)


def _added(parts: list[Held], device: str) -> int | None:
    total = 0
    for part in parts:
        size = part.on(device)
        if size is None:
            return None
        total += size
    return total


MOST_OF_DRIVER_BYTES = 1 << 30


async def held_memory(engine: EngineProcess | None) -> Held:
    """Return what an engine holds, by device; nothing is held without an engine.

    Of the host it is the process's own memory as the system counts it now, caches that filled
    since included. Weights that are mapped from their file count as free already. Of a GPU it is
    what llama.cpp allocated, or what was taken while it did, which has the driver's part in it, but
    may have another process's too.
    """
    if engine is None or engine.pid is None:
        return Held()
    host = await trio.to_thread.run_sync(held_memory_bytes, engine.pid)
    held: dict[str, int | None] = {HOST: host}
    memory = None if engine.ready is None else engine.ready.memory
    if memory is None:
        return Held(held, others=0 if engine.load.n_gpu_layers == 0 else None)
    for device in memory.devices:
        if device.kind not in OF_HOST:
            taken = memory.taken.get(device.name, 0)
            most = device.needed + MOST_OF_DRIVER_BYTES if device.needed else 0
            held[device.name] = max(device.needed, min(taken, most))
    return Held(held)
