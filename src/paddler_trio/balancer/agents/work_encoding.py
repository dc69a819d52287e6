"""Work encoded for agents: off the event loop if it is large, and counted while it is kept."""

from __future__ import annotations

from functools import partial

from paddler_trio.net.server.input_budget import INLINE_BYTES, BudgetSpentError, Reservation
from paddler_trio.net.server.json_body import no_room
from paddler_trio.wire.trio.request_frame import EncodedWork, encode_work
from paddler_trio.wire.trio.work import Work


async def encoded(work: Work, room: Reservation, *, is_large: bool = False) -> EncodedWork:
    """``work`` as bytes, for which ``room`` has grown.

    ``is_large``: it may be larger than the body of its HTTP request.

    Errors:
      HttpProblem: 503, there is no room for it.
      WireError: a value in it has no JSON form.
    """
    if is_large or room.used_bytes > INLINE_BYTES:
        result = await room.off_loop(partial(encode_work, work, in_runs=True))
    else:
        result = encode_work(work)
    try:
        room.grow(result.size_bytes)
    except BudgetSpentError as spent:
        raise no_room(spent) from spent
    return result
