"""``paddler-trio tree``: the running nursery tree of a daemon, as it is at this moment."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from paddler_trio.cli import completion_values
from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.management_client import ManagementClient, TreeView
from paddler_trio.cli.terminal import one_line_errors, print_json, printable, stdout


@with_flags
def tree(
    *,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            help="Show the agent of this name or id.",
            show_default="the balancer itself",
            autocompletion=completion_values.agents,
        ),
    ] = None,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Print every running task: what it waits for, its restarts, and its last crash."""
    with one_line_errors(), ManagementClient.open(management) as client:
        view, raw = client.tree(agent)
        if as_json:
            print_json(raw)
        else:
            stdout().print(sampled(view))


def sampled(view: TreeView, parent: Tree | None = None) -> Tree:
    """The tree below ``parent``, or a whole one."""
    text = Text.assemble(
        (printable(view.name), "bold"), "  ", (printable(view.waits_for), "dim"), no_wrap=True
    )
    if view.restarts:
        times = "once" if view.restarts == 1 else f"{view.restarts} times"
        text.append(f"  restarted {times}", style="yellow")
    if view.last_crash is not None:
        text.append(f", last crash: {printable(view.last_crash)}", style="red")
    node = Tree(text) if parent is None else parent.add(text)
    for child in view.children:
        sampled(child, node)
    return node
