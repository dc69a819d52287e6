"""What an agent may take of its machine's memory, as options; sizes are MiB."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

from paddler_trio.scheduler.fit.reserves import MemoryLimits

PANEL = "Memory"
MIB = 1024 * 1024


class FitCheck(StrEnum):
    on = "on"
    off = "off"


FitOption: TypeAlias = Annotated[
    FitCheck,
    typer.Option(
        "--fit",
        rich_help_panel=PANEL,
        help="Refuse a model that does not fit the free memory, and keep serving the one before "
        "it; off loads it anyway.",
    ),
]


class LoadBeside(StrEnum):
    auto = "auto"
    off = "off"


LoadBesideOption: TypeAlias = Annotated[
    LoadBeside,
    typer.Option(
        "--load-beside",
        rich_help_panel=PANEL,
        help="Load a new model beside the one in force where both fit, so that there is no gap; "
        "off, or where they do not fit, ends the old one first. Needs --fit on.",
    ),
]
MemoryLimitOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        rich_help_panel=PANEL,
        min=1,
        help="MiB of host memory that models may take together, whatever is free.",
        show_default="no limit",
    ),
]
MemoryReserveOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--memory-reserve",
        rich_help_panel=PANEL,
        min=0,
        help="MiB of host memory that a model leaves free.",
        show_default="2048, or a tenth of a machine with less than 20 GiB",
    ),
]
GpuMemoryReserveOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--gpu-memory-reserve",
        rich_help_panel=PANEL,
        min=0,
        help="MiB that a model leaves free on each GPU.",
        show_default="1024, or a twentieth of a GPU with less than 20 GiB",
    ),
]


def memory_limits(limit: int | None, reserve: int | None, gpu_reserve: int | None) -> MemoryLimits:
    """The options together."""
    host_limit, host_reserve, each_gpu = (
        None if size is None else size * MIB for size in (limit, reserve, gpu_reserve)
    )
    return MemoryLimits(
        host_limit_bytes=host_limit, host_reserve_bytes=host_reserve, gpu_reserve_bytes=each_gpu
    )
