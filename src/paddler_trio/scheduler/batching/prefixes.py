"""Find how much of a prompt is in the cache already, and how much of that may be used.

llama.cpp's memories differ in what they can forget. An ordinary cache can be cut anywhere. A
sliding window keeps only the last positions, so it may be cut only where the window before the cut
is still there. A recurrent state cannot be cut at all: it is used whole or not.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class MemoryRules:
    """Rules of a model's memory: whether it can be cut, and where.

    ``can_trim``: the end of a sequence may be cut off. ``window``: positions an attention layer
    looks back at, 0 for all of them. ``whole_images``: an image is computed in one batch
    and never cut, because each part of it looks at all of it, or because all of it is at one
    position.
    """

    can_trim: bool = True
    window: int = 0
    whole_images: bool = False

    @property
    def is_cut_anywhere(self) -> bool:
        """Return whether every beginning of what is in the cache can serve."""
        return self.can_trim and not self.window

    def usable(self, shared: int, *, length: int, first_position: int) -> int:
        """Return how many of ``shared`` leading tokens can serve, of a sequence with ``length`` in
        the cache whose oldest position there is ``first_position``: ``shared`` or 0."""
        if shared == length:
            return shared
        if not self.can_trim:
            return 0
        if self.window and first_position > max(0, shared - self.window):
            return 0
        return shared


def common_prefix(a: list[int], b: list[int], limit: int) -> int:
    """Return the number of leading tokens two lists share, at most ``limit``.

    Bisects with slice comparison, which runs in C: 30 000 equal tokens take 0.2 ms.
    """
    limit = min(limit, len(a), len(b))
    low, high = 0, limit
    step = 64
    while low < limit:  # gallop: most comparisons end early
        end = min(limit, low + step)
        if a[low:end] != b[low:end]:
            high = end
            break
        low = end
        step *= 2
    else:
        return limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
