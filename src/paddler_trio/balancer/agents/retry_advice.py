"""``Retry-After`` of what was refused on the way to a slot."""

from __future__ import annotations

from typing import Final

from paddler_trio.net.server.asgi import Header
from paddler_trio.nursery_tree.pools import Pools
from paddler_trio.nursery_tree.request_endings import BUFFERED_TOO_LONG, MOVED, Failure
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

AT_ONCE_S: Final = 1


def retry_advice(
    pools: Pools, failure: Failure, deployment: str = DEFAULT_DEPLOYMENT
) -> list[Header]:
    """Return the header of a refusal that is worth another try; empty for other failures.

    What another process has taken over is answered there at once. Everything else waits for the
    queue of the deployment to move, or for its model.
    """
    if failure == MOVED:
        return [(b"retry-after", b"%d" % AT_ONCE_S)]
    is_worth_it = failure.code in (429, 503) or failure == BUFFERED_TOO_LONG
    return retry_later(pools, deployment) if is_worth_it else []


def retry_later(pools: Pools, deployment: str = DEFAULT_DEPLOYMENT) -> list[Header]:
    """Return the header of what waits for that queue."""
    return [(b"retry-after", b"%d" % pools.retry_after_s(deployment))]
