"""Requests that kill what works on them, told by their ``max_tokens``: a real abort in the middle
of a batch, or while one request is admitted; a real end of a whole agent while it prepares one."""

from __future__ import annotations

import os
import signal
from typing import Any

IN_BATCH = 661
IN_ADMISSION = 662
IN_PREPARATION = 663
IN_PYTHON = 664
"""An exception that nobody catches, in the thread that admits."""


def make_engine_vulnerable() -> None:
    import attrs

    from paddler_trio.processes.engine import decode_loop, engine_main

    fill, admit = decode_loop.fill, engine_main.admit

    def deadly_fill(llama: Any, shares: Any, contents: Any) -> Any:
        call = fill(llama, shares, contents)
        if any(share.sequence.max_tokens == IN_BATCH for share in shares):
            return attrs.evolve(call, compute=os.abort)
        return call

    def deadly_admit(llama: Any, shape: Any, start: Any, *more: Any) -> Any:
        if start.max_tokens == IN_ADMISSION:
            os.abort()
        if start.max_tokens == IN_PYTHON:
            raise MemoryError
        return admit(llama, shape, start, *more)

    decode_loop.fill = deadly_fill
    engine_main.admit = deadly_admit


def make_agent_vulnerable() -> None:
    from paddler_trio.agent.children import preparation

    prepare = preparation.Preparation.prepare

    async def deadly_prepare(self: Any, job: Any, *, client: str) -> Any:
        if f'"max_tokens":{IN_PREPARATION}' in job.frame.text:
            os.kill(os.getpid(), signal.SIGKILL)
        return await prepare(self, job, client=client)

    preparation.Preparation.prepare = deadly_prepare  # type: ignore[method-assign]
