"""Choose how much of a socket is read at once, where what arrives is taken apart piece by piece.

Bytes cost little, pieces cost as much each as a thousand bytes: 64 KiB that are ten thousand chunks
of one byte hold the event loop up for longer than anybody should wait. A sender of such pieces is
read in small portions, so that others have their turn between them.
"""

from __future__ import annotations

from typing import Final

import attrs

MOST_BYTES: Final = 65_536
LEAST_BYTES: Final = 4096
MANY_PIECES: Final = 512
"""Pieces in one read; from these on the next read is shorter."""
FEW_PIECES: Final = 128


@attrs.define
class ReadSize:
    """The size of the reads of one socket; ``num_bytes`` is for the next one."""

    num_bytes: int = attrs.field(default=MOST_BYTES, init=False)

    def note(self, num_pieces: int) -> None:
        """Note that so many pieces were in what was read."""
        if num_pieces > MANY_PIECES:
            self.num_bytes = max(LEAST_BYTES, self.num_bytes // 4)
        elif num_pieces <= FEW_PIECES and self.num_bytes < MOST_BYTES:
            self.num_bytes *= 2
