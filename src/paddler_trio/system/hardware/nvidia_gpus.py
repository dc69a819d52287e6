"""Ask ``nvidia-smi``, which comes with every driver of NVIDIA's, for the GPUs of this machine."""

from __future__ import annotations

import csv
import shutil
import subprocess
from functools import partial
from typing import Final

import trio

from paddler_trio.wire.trio.operations.machine_facts import MAX_GPUS, GpuFacts

PROGRAM: Final = "nvidia-smi"
ANSWER_S: Final = 8.0
"""It loads the driver where nothing keeps that loaded, which takes seconds."""
MAX_OUTPUT_BYTES: Final = 64 * 1024
_FIELDS: Final = (
    *("name", "driver_version", "memory.total", "memory.used"),
    *("utilization.gpu", "temperature.gpu", "power.draw"),
)
_MEBIBYTE: Final = 1024.0 * 1024.0


async def nvidia_gpus() -> tuple[GpuFacts, ...] | None:
    """Return the GPUs; None if there is no such program, or it fails, or takes too long."""
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    start = partial(
        trio.run_process,
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    said = None
    with trio.move_on_after(ANSWER_S):
        try:
            async with trio.open_nursery() as nursery:
                said = await _output(await nursery.start(start, name=PROGRAM))
                nursery.cancel_scope.cancel(reason="it has answered")
        except* OSError:  # it is no program for this machine
            said = None
    return None if said is None else read_gpus(said.decode(errors="replace"))


async def _output(process: trio.Process) -> bytes | None:
    """Return what the program printed; None if it failed, or printed more than GPUs take."""
    assert process.stdout is not None
    said = b""
    while more := await process.stdout.receive_some():
        said += more
        if len(said) > MAX_OUTPUT_BYTES:
            return None
    return said if await process.wait() == 0 else None


def read_gpus(text: str) -> tuple[GpuFacts, ...]:
    """Return the GPUs of lines as ``nvidia-smi`` prints them; it says ``[N/A]`` of what a GPU does
    not tell."""
    gpus = []
    for row in csv.reader(text.splitlines()[:MAX_GPUS], skipinitialspace=True):
        if len(row) != len(_FIELDS):
            continue
        total, used, busy, temperature_c, power_w = map(_number, row[2:])
        gpus.append(
            GpuFacts(
                name=row[0].strip(),
                driver=row[1].strip(),
                memory_bytes=None if total is None else total * _MEBIBYTE,
                memory_used_bytes=None if used is None else used * _MEBIBYTE,
                busy=None if busy is None else busy / 100,
                temperature_c=temperature_c,
                power_w=power_w,
            )
        )
    return tuple(gpus)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
