"""``paddler-trio demo``: a balancer, an agent and the bundled model, tried with one command."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Annotated

import typer

from paddler_trio.cli.client_flags import LogJsonOption, LogLevel, LogLevelOption
from paddler_trio.cli.terminal import one_line_errors, require_llama
from paddler_trio.system.config import DEFAULT_INFERENCE_ADDR, DEFAULT_MANAGEMENT_ADDR


def demo(
    inference_addr: Annotated[
        str, typer.Option(help="host:port of the inference service; a free port if it is taken.")
    ] = DEFAULT_INFERENCE_ADDR,
    management_addr: Annotated[
        str, typer.Option(help="host:port of the management service; a free port if it is taken.")
    ] = DEFAULT_MANAGEMENT_ADDR,
    slots: Annotated[int, typer.Option(min=1, max=256, help="Slots of the agent.")] = 4,
    once: Annotated[bool, typer.Option("--once", help="End after the sample answer.")] = False,
    log_level: LogLevelOption = LogLevel.warning,
    log_json: LogJsonOption = None,
) -> None:
    """Try it: balancer, agent and a tiny bundled model, one answer, then keep serving."""
    with one_line_errors():
        require_llama()
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import trio

    from paddler_trio.cli.daemons.daemons import run_daemon
    from paddler_trio.cli.daemons.demo_tree import bind_demo, run_demo

    bound = bind_demo(inference_addr, management_addr)

    async def body(stop: trio.Event) -> None:
        with as_file(files("paddler_trio.models") / "paddler-demo.gguf") as model:
            await run_demo(bound, model, slots, stop, once=once)

    run_daemon(body, log_level=log_level, log_json=log_json)
