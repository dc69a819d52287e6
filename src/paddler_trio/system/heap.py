"""The heap of a daemon: garbage collection that does not stop it, and memory that it gives back.

Python's full collection walks every object there is with the interpreter held: 50 to 70 ms with
what our daemons import, whenever enough garbage came together, and no token moves meanwhile. What
is there before the work begins stays for good, so it need not be walked again. With 16,000 requests
in flight a full collection takes most of a second, and finds nothing: requests leave no cycles
behind, however they end. So it happens a tenth as often as by default, and garbage is bounded all
the same.

glibc raises the size from which it maps memory of its own to that of the largest block freed so
far. After one body of some MiB, all others come from the heap, which small objects between them
keep from shrinking: a balancer that had held 240 MiB of bodies kept 160 of them. With a fixed size
it kept 30.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from typing import Final

MAPPED_BYTES: Final = 128 * 1024
"""Blocks from this size on are mapped, and given back when they are freed; glibc's first value."""
FULL_COLLECTION_OBJECTS: Final = 700_000
"""Objects more than before, until all are walked: so much garbage in cycles there may be. Releases
of Python differ in how many objects the younger generations wait for."""
_M_MMAP_THRESHOLD: Final = -3


def freeze_heap() -> None:
    """Collect once, now, leave all that survives out of later collections, and make full ones rare.

    Call it where nothing waits: before a tree runs, when a model was loaded.
    """
    gc.collect()
    gc.freeze()
    youngest, middle, _ = gc.get_threshold()
    in_between = max(1, youngest) * max(1, middle)
    gc.set_threshold(youngest, middle, max(1, FULL_COLLECTION_OBJECTS // in_between))


def give_back_large_blocks() -> None:
    """Give large blocks back from now on; nothing happens where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def trim_heap() -> None:
    """Give pages without a block in use back, now; nothing happens where the C library is not
    glibc. Call it in a worker thread: others wait for it when they allocate or free."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def limit_myself(which: int, soft: int, hard: int = resource.RLIM_INFINITY) -> None:
    """Set a limit as :func:`resource.setrlimit` does, where a limit above the hard one in force
    (``ulimit``, or ``Limit…=`` of a unit) means that one: nothing but it would be refused."""
    _, most = resource.getrlimit(which)
    resource.setrlimit(which, (_lower(soft, most), _lower(hard, most)))


def _lower(limit: int, most: int) -> int:
    if resource.RLIM_INFINITY in (limit, most):  # which is less than every number
        return most if limit == resource.RLIM_INFINITY else limit
    return min(limit, most)
