"""Hand a task over to a nursery elsewhere in the tree, and wait for it.

A connection that turns out to be an agent's belongs among the agents, and its end must still be the
end of the connection. So the agent's task is a child of the *agents* nursery, while the task of the
connection waits for it: cancelling either of them ends both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


async def run_in(nursery: trio.Nursery, run: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Run ``run()`` as a child of ``nursery``; it has ended when this returns.

    Args:
      name: of the child in the printed tree.

    Raises: what ``run`` raised. The nursery is not concerned by it.

    Cancellation: the child is cancelled, too, and waited for.
    """
    has_ended = trio.Event()
    scope = trio.CancelScope()
    raised: list[Exception] = []

    async def child() -> None:
        try:
            with scope:
                await run()
        except Exception as error:  # noqa: BLE001  # raised again in the task that waits
            raised.append(error)
        except BaseExceptionGroup as group:  # an error, and the cancellation of this nursery
            errors, cancelled = group.split(Exception)
            if errors is not None:
                raised.append(errors)
            if cancelled is not None:
                raise cancelled from None
        finally:
            has_ended.set()

    nursery.start_soon(child, name=name)
    try:
        await has_ended.wait()
    finally:
        scope.cancel(reason="the task that waits for it is cancelled")
        with trio.CancelScope(shield=True):  # as a nursery waits for the children it cancelled
            await has_ended.wait()
    if raised:
        raise raised[0]
