"""Garbage collection that does not stop a daemon for as long as its imports are large.

Python's full collection walks every object there is with the interpreter held: 50 to 70 ms with
what our daemons import, whenever enough garbage came together, and no token moves meanwhile. What
is there before the work begins stays for good, so it need not be walked again.
"""

from __future__ import annotations

import gc


def freeze_heap() -> None:
    """Collect once, now, and leave all that survives out of later collections.

    Call it where nothing waits: before the listeners open, when a model was loaded. What was frozen
    earlier and has become garbage since is found too.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
