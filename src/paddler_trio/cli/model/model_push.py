"""``paddler-trio model push``: a file of this machine, for all agents, through the balancer."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors, print_json, stderr, stdout

if TYPE_CHECKING:
    from paddler_trio.cli.model.push_run import PushedNames


@with_flags
def push(
    *,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A GGUF file of this machine; of several parts, the first."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="What agents call the model.", show_default="the file's own name"
        ),
    ] = None,
    projection: Annotated[
        Path | None,
        typer.Option(
            "--projection", metavar="FILE", help="Push this projection for images with it."
        ),
    ] = None,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Upload a model once, to the balancer's model store; `model swap` then serves it."""
    pushed = _push(
        file,
        projection,
        name=name,
        as_json=as_json,
        management=management,
    )
    if as_json:
        print_json({"source": pushed.model, "projection": pushed.projection})
    else:
        words = ["paddler-trio", "model", "swap", pushed.model]
        if pushed.projection is not None:
            words += ["--projection", pushed.projection]
        stdout().print(f"pushed: {shlex.join(words)}", soft_wrap=True)  # to be copied


def pushed_sources(
    source: str,
    projection: str | None,
    *,
    management: ManagementFlags,
    as_json: bool,
) -> tuple[str, str | None]:
    """Upload the files that these texts name; how the desired state names them. A projection that
    is no file here stays what it is."""
    local = None if projection is None else Path(projection)
    is_here = local is not None and local.is_file()
    pushed = _push(
        Path(source),
        local if is_here else None,
        name=None,
        as_json=as_json,
        management=management,
    )
    return pushed.model, pushed.projection if is_here else projection


def _push(
    file: Path,
    projection: Path | None,
    *,
    name: str | None,
    as_json: bool,
    management: ManagementFlags,
) -> PushedNames:
    from paddler_trio.cli.model.push_run import push_display, push_model
    from paddler_trio.cli.model.store_client import StoreClient

    with one_line_errors(), StoreClient.open(management) as client:
        try:
            with push_display(stderr(), as_json=as_json) as display:
                return push_model(client, file, projection, name=name, display=display)
        except KeyboardInterrupt:
            stderr().print("stopped; what has arrived stays, and the same command goes on")
            raise
    raise AssertionError("errors end the command")
