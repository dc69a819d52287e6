"""``paddler-trio setup``: a llama.cpp that runs on this machine, into this installation."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.processes.llama_setup.recipes import Accelerator
from paddler_trio.processes.llama_setup.set_up import SetupRequest, main


def setup(
    cuda: Annotated[
        bool, typer.Option("--cuda", help="For GPUs of NVIDIA; needs the CUDA toolkit.")
    ] = False,
    vulkan: Annotated[
        bool, typer.Option("--vulkan", help="For GPUs with Vulkan; needs glslc and headers.")
    ] = False,
    metal: Annotated[bool, typer.Option("--metal", help="For GPUs of Apple.")] = False,
    cpu: Annotated[
        bool,
        typer.Option(
            "--cpu",
            help="For the CPU alone, in place of whatever is installed.",
        ),
    ] = False,
    portable: Annotated[
        bool,
        typer.Option(
            "--portable",
            help="For other machines too (x86-64-v3): to be copied there, as an image is.",
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what would be tried, and change nothing.")
    ] = False,
) -> None:
    """Build llama.cpp for this machine, prove it by decoding, and install it."""
    asked: dict[Accelerator, bool] = {"cuda": cuda, "vulkan": vulkan, "metal": metal, "cpu": cpu}
    chosen: list[Accelerator] = [name for name, is_chosen in asked.items() if is_chosen]
    if len(chosen) > 1:
        together = " and ".join(f"--{name}" for name in chosen)
        raise typer.BadParameter(f"{together}: choose one")
    accelerator = chosen[0] if chosen else None
    words = ["paddler-trio setup", *(f"--{each}" for each in chosen), *["--portable"] * portable]
    request = SetupRequest(" ".join(words), accelerator, portable=portable, plan_only=plan)
    raise typer.Exit(main(request))
