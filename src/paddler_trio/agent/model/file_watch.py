"""Waiting for a model's file to become another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from paddler_trio.agent.model.model_file import ModelFile, file_at

FILE_WATCH_S = 1.0


async def wait_file_changes(path: str, known: ModelFile | None) -> None:
    """Return when the file at ``path`` is not what it was."""
    while await trio.to_thread.run_sync(file_at, path) == known:  # noqa: ASYNC110
        await trio.sleep(FILE_WATCH_S)  # the file system sends no event


async def returns_before(
    ended: trio.Event, wait: Callable[..., Awaitable[None]], *args: object
) -> bool:
    """Wait for ``wait(*args)`` or the event; True if it was the first alone."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await wait(*args)
            nursery.cancel_scope.cancel(reason="it returned")

        nursery.start_soon(watch, name="watch")
        await ended.wait()
        nursery.cancel_scope.cancel(reason="it ended")
    return not ended.is_set()


async def wait_first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when one of them does; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def watch(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel(reason="another one returned")

        for wait in waits:
            nursery.start_soon(watch, wait, name="watch")
