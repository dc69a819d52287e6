"""Children that end by themselves and children that do not, also when their owner is cancelled."""

from __future__ import annotations

import os
import subprocess

import pytest
import trio

from paddler_trio.system.process_end import end_process

STUBBORN = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]
DOCILE = ["sh", "-c", "echo up; cat; exit 7"]


async def started(command: list[str]) -> trio.Process:
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with trio.fail_after(30):
        assert await process.stdout.receive_some(3) == b"up\n"
    return process


def gone(process: trio.Process) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_one_that_ends_when_its_pipe_is_closed_is_not_killed() -> None:
    process = await started(DOCILE)
    await end_process(process, name="docile child", grace_s=30)
    assert process.returncode == 7
    gone(process)


@pytest.mark.parametrize("grace_s", [0.0, 0.1])
async def test_one_that_does_not_end_is_killed_and_reaped(grace_s: float) -> None:
    process = await started(STUBBORN)
    await end_process(process, name="stubborn child", grace_s=grace_s)
    assert process.returncode == -9
    gone(process)


async def test_it_is_gone_though_whoever_ends_it_is_cancelled() -> None:
    process = await started(STUBBORN)
    with trio.CancelScope() as scope:
        scope.cancel()
        await end_process(process, name="stubborn child", grace_s=0.1)
    assert process.returncode == -9
    gone(process)
