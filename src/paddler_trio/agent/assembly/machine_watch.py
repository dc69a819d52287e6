"""Look at the machine again and again, for all links of an agent: in threads, and not often."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from paddler_trio import __version__
from paddler_trio.system.hardware.machine_reader import MachineReader
from paddler_trio.system.hardware.nvidia_gpus import nvidia_gpus
from paddler_trio.system.printed_tree import explain_this_task
from paddler_trio.system.supervise import keep
from paddler_trio.wire.trio.operations.machine_facts import GpuFacts, MachineFacts

LOOK_S: Final = 5.0
"""Between two looks at the kernel's files, which take milliseconds."""
GPUS_S: Final = 10.0
"""Between two runs of ``nvidia-smi``; a run that takes long is repeated less often."""
GPUS_SHARE: Final = 20
"""A run may take one part in so many of the time."""
MOST_GPUS_S: Final = 600.0


@attrs.define(eq=False)
class MachineWatch:
    """``facts``: the newest; another object after each look. None before the first."""

    facts: MachineFacts | None = attrs.field(default=None, init=False)
    _reader: MachineReader = attrs.field(factory=lambda: MachineReader(__version__), init=False)
    _seen: MachineFacts | None = attrs.field(default=None, init=False)
    """What the kernel's files said last."""
    _gpus: tuple[GpuFacts, ...] = attrs.field(default=(), init=False)

    def __repr__(self) -> str:
        return f"<MachineWatch: {len(self._gpus)} GPUs of NVIDIA's>"

    async def keep_looking(self) -> None:
        """Look until cancelled; what goes wrong costs nothing but facts."""
        await keep("machine", Exception, self._look)

    async def _look(self) -> None:
        explain_this_task(lambda: repr(self))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_at_gpus, name="nvidia-smi")
            while True:
                self._seen = await trio.to_thread.run_sync(
                    self._reader.read, abandon_on_cancel=True
                )
                self._show()
                await trio.sleep(LOOK_S)

    def _show(self) -> None:
        if self._seen is not None:
            self.facts = attrs.evolve(self._seen, gpus=(*self._gpus, *self._seen.gpus))

    async def _look_at_gpus(self) -> None:
        failures = 0
        while True:
            began_s = trio.current_time()
            gpus = await nvidia_gpus()
            self._gpus = () if gpus is None else gpus
            self._show()
            failures = failures + 1 if gpus is None else 0
            took_s = trio.current_time() - began_s
            pause_s = max(GPUS_S * 2.0**failures, took_s * GPUS_SHARE)
            await trio.sleep(min(MOST_GPUS_S, pause_s))
