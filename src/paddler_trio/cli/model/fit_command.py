"""``paddler-trio model fit``: would a model fit? Nothing changes."""

from __future__ import annotations

from typing import Annotated

import attrs
import typer

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.daemons.options import JsonOption
from paddler_trio.cli.exit_codes import CANNOT_SAY
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.model.parameter_options import MemoryFlags
from paddler_trio.cli.terminal import one_line_errors


@with_flags
def fit(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="A path on the agents, https://..., hf:org/repo[:QUANT] or "
            "hf:org/repo/file@revision.",
            autocompletion=completion_values.models,
        ),
    ],
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            help="Ask this one, by name or id, instead of all.",
            autocompletion=completion_values.agents,
        ),
    ] = None,
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="Judge this machine as if it were an idle agent; ask nobody. Done without it, "
            "too, where no balancer runs at the usual address.",
        ),
    ] = False,
    projection: Annotated[
        str | None,
        typer.Option("--projection", metavar="SOURCE", help="Multimodal projection; or none."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, show_default="each agent's own; 1 with --here"),
    ] = None,
    parameters: MemoryFlags,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    if here and agent is not None:
        raise typer.BadParameter("give one of them", param_hint="--here / --agent")
    with one_line_errors(CANNOT_SAY):
        from paddler_trio.cli.model.fit_run import run_fit
        from paddler_trio.cli.model.model_order import ModelRunOptions

        status = run_fit(
            ModelRunOptions.read(
                source=source,
                projection=projection,
                flags=attrs.asdict(parameters),
                file=None,
                template_file=None,
                no_template=False,
            ),
            agent=agent,
            here=here,
            slots=slots,
            as_json=as_json,
            management=management,
        )
    raise typer.Exit(status)
