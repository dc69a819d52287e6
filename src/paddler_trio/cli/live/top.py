"""``paddler-trio top``, once called ``dashboard``: the fleet as it works, on a terminal."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, TypeAlias

import typer

from paddler_trio.cli.client_flags import JsonOption, ManagementFlags
from paddler_trio.cli.flags import with_flags
from paddler_trio.cli.terminal import one_line_errors, print_json, stdout
from paddler_trio.errors import leaves

HUNG_UP = 129


OnceOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--once", help="Print what is so now and end; so it is wherever there is no terminal."
    ),
]


@with_flags
def top(
    *,
    once: OnceOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """Watch agents, slots, queue and requests; sort, filter, cancel and drain by key."""
    _show(once, as_json, management)


@with_flags
def dashboard(
    *,
    once: OnceOption = False,
    as_json: JsonOption = False,
    management: ManagementFlags,
) -> None:
    """The name that `top` had in Paddler 1.x: the same, and keys move in the table of agents."""
    _show(once, as_json, management, agents_first=True)


def _show(
    once: bool,
    as_json: bool,
    management: ManagementFlags,
    *,
    agents_first: bool = False,
) -> None:
    import trio

    from paddler_trio.cli.live.top_run import look_once, run_top
    from paddler_trio.cli.live.top_screen import plain_lines
    from paddler_trio.cli.live.top_view import Pane, TopView

    with one_line_errors(), _plain_interrupts():
        console = stdout()
        can_draw = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
        if once or as_json or not can_draw:
            picture = trio.run(look_once, management)
            if as_json:
                print_json(picture.document())
            else:
                for line in plain_lines(picture):
                    console.print(line, soft_wrap=True)
            return
        view = TopView(active=Pane.AGENTS if agents_first else Pane.REQUESTS)
        try:
            code = trio.run(partial(run_top, management, console, view))
        except (OSError, BaseExceptionGroup) as error:
            if not _is_hang_up(error):
                raise
            code = HUNG_UP
    if code:
        raise typer.Exit(code)


@contextmanager
def _plain_interrupts() -> Iterator[None]:
    """Ctrl-C as itself, also out of the nurseries that it ended."""
    try:
        yield
    except BaseExceptionGroup as group:
        if any(isinstance(each, KeyboardInterrupt) for each in leaves(group)):
            raise KeyboardInterrupt from group
        raise


def _is_hang_up(error: BaseException) -> bool:
    """The terminal is gone, and with it the reader."""
    return all(isinstance(each, OSError) and each.errno == errno.EIO for each in leaves(error))
