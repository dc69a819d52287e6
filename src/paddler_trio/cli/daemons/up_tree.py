"""A balancer and an agent in one tree, and ``model swap`` beside them for the model.

That command shows how the model is fetched, judged and loaded, and says why where it is not. It is
a process, so that it ends with this one whatever it waits for.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from paddler_trio.balancer.assembly.bound_balancer import BoundBalancer
from paddler_trio.cli.daemons.demo_tree import run_pair, what_to_try
from paddler_trio.cli.model.model_order import sources_of
from paddler_trio.errors import PaddlerError
from paddler_trio.nursery_tree.balancer_tree import Addresses


class NotServedError(PaddlerError):
    """The model that was asked for is not served."""


def model_of(source: str) -> str:
    """Return the source as the agent is told it: a path from the root; typer.BadParameter if it is
    none of a model."""
    path = Path(source).expanduser()
    source = str(path.absolute()) if path.is_file() else source
    sources_of(source, None)
    return source


async def run_up(
    bound: BoundBalancer, model: str, options: Sequence[str], slots: int, stop: trio.Event
) -> None:
    """Serve the model until ``stop``; NotServedError if it cannot be served.

    Args:
      options: of ``model swap``.
    """

    async def serve(addresses: Addresses) -> None:
        address = f"--management-addr={addresses.management[0]}"
        command = [sys.executable, "-P", "-m", "paddler_trio", "model", "swap", address, *options]
        swap = await trio.run_process(
            [*command, "--", model], stdin=subprocess.DEVNULL, check=False
        )
        if swap.returncode:
            stop.set()
            raise NotServedError(f"{model} is not served: see above")
        print(f"ready:    http://{addresses.inference[0]}/v1\n", flush=True)
        print(what_to_try(addresses), flush=True)

    await run_pair(bound, "local", slots, stop, serve)
