"""Work written for agents, off the event loop when it is large, and counted while it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from paddler_trio.http.input_budget import INLINE_BYTES, BudgetSpentError, Reservation
from paddler_trio.http.json_body import no_room
from paddler_trio.wire.trio.written_work import WrittenWork, write_work


async def written(
    work: Mapping[str, object], room: Reservation, *, is_large: bool = False
) -> WrittenWork:
    """``work`` as bytes, for which ``room`` has grown.

    ``is_large``: more may be in it than the request brought.

    Errors:
      HttpProblem: 503, there is no room for it.
      WireError: it is no work.
    """
    if is_large or room.used_bytes > INLINE_BYTES:
        whole = await room.off_loop(partial(write_work, work, in_runs=True))
    else:
        whole = write_work(work)
    try:
        room.grow(whole.size_bytes)
    except BudgetSpentError as spent:
        raise no_room(spent) from spent
    return whole
