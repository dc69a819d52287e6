"""A response whose bytes are somebody else's: status line, headers and framing go out as given.

Hypercorn and h11 would write a response in their own way: names in lower case, a ``Date`` of ours,
chunks of ours. What a server answers that stands behind us is not for us to rephrase. They are told
that there is a response, so that they know what may follow on the connection, and nothing that they
would write of it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from paddler_trio.net.server.asgi import Send

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Of a head, names in lower case."""


class RawResponse(Protocol):
    """One response, written whole, or cut by a handler that returns without ``end``."""

    @property
    def must_close(self) -> bool:
        """No other request may follow: the head has to say so."""
        ...

    async def begin(self, send: Send, status: int, *, closes: bool) -> Fields:
        """Nothing that is sent by ASGI is written from now on. ``closes``: the end of the body is
        the end of the connection.

        Returns:
          What those between the application and the server (``send``) have added to the head: it is
          for the caller to write.
        """
        ...

    def write_now(self, data: bytes) -> bool:
        """Write without waiting; whether the kernel took all of it. The rest goes out before what
        is written next: await a ``write`` soon, of nothing if need be. ClientGoneError."""
        ...

    async def write(self, data: bytes) -> None:
        """Within the write deadline; ClientGoneError when the client left or does not read."""
        ...

    async def end(self, send: Send) -> None:
        """All of it was written."""
        ...

    def abort(self) -> None:
        """Reset the connection: of a body that ends with it, the client has only a part."""
        ...
