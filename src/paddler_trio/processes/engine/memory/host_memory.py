"""One block of host memory, made ready beside the passes.

The first touch of a page costs many times what copying into it costs: measured in a virtual
machine, 130 ms for 50 MB that are then copied in 3 ms. So a thread of its own, of the lowest
priority, touches pages before they are needed, and nothing is ever given back.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from paddler_trio.system.thread_priority import LOWEST, give_way

_FIRST_BYTES = 8 << 20
"""Ready from the start: enough for what small models keep."""
_STEP_BYTES = 4 << 20


class HostMemory:
    """``num_bytes`` of address space, none if the system grants so much not even to be used later;
    memory only as far as it was asked for."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = 0
        self.ready_bytes = 0
        """From the beginning on; grows."""
        self._wanted_bytes = 0
        self._is_wanted = threading.Event()
        self._bytes = np.empty(0, np.uint8)
        if num_bytes == 0:
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            block = mmap.mmap(-1, num_bytes, flags=flags)
        except OSError as error:
            os.write(2, b"4\tno room for prefixes in host memory, %d bytes: " % num_bytes)
            os.write(2, f"{error}; --prefix-cache-ram says how much is asked for\n".encode())
            return
        self.num_bytes = num_bytes
        self._bytes = np.frombuffer(block, np.uint8)
        self._touch(min(_FIRST_BYTES, num_bytes))

    def view(self, offset: int, num_bytes: int) -> np.ndarray:
        """Return a range of it: uint8 of shape (num_bytes,), writable."""
        assert 0 <= offset <= offset + num_bytes <= self.ready_bytes, "this is not ready"
        return self._bytes[offset : offset + num_bytes]

    def want(self, num_bytes: int) -> None:
        """Have the first ``num_bytes``, or all there are, made ready some time soon."""
        num_bytes = min(num_bytes, self.num_bytes)
        if num_bytes > self._wanted_bytes:
            self._wanted_bytes = num_bytes
            self._is_wanted.set()

    def start(self, *, on_crash: Callable[[], NoReturn]) -> None:
        """Begin to make memory ready; ``on_crash`` is called if that fails."""

        def run() -> None:
            try:
                give_way(LOWEST)
                while True:
                    self._is_wanted.wait()
                    self._is_wanted.clear()
                    while self.ready_bytes < self._wanted_bytes:
                        self._touch(min(self.ready_bytes + _STEP_BYTES, self._wanted_bytes))
            except Exception:
                on_crash()
                raise

        threading.Thread(target=run, name="host-memory", daemon=True).start()

    def _touch(self, until: int) -> None:
        """Touch memory; numpy lets other threads run while it writes."""
        self._bytes[self.ready_bytes : until : mmap.PAGESIZE] = 0
        self.ready_bytes = until
