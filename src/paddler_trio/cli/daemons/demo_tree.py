"""The demo: a balancer, an agent and the bundled model in one supervised tree.

The sample answer goes the way of any request: through the balancer's HTTP listener, to the agent,
to its engine process, and back token by token.

A balancer and an agent in one tree, and ``model swap`` beside them for the model.

That command shows how the model is fetched, judged and loaded, and says why where it is not. It is
a process, so that it ends with this one whatever it waits for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import attrs
import httpx
import trio
import typer

from paddler_trio.agent.assembly.agent_daemon import serve_agent
from paddler_trio.balancer.assembly.balancer_daemon import serve_balancer
from paddler_trio.balancer.assembly.bound_balancer import BoundBalancer
from paddler_trio.cli.answer_lines import async_lines_of
from paddler_trio.cli.model.model_order import sources_of
from paddler_trio.cli.terminal import printable
from paddler_trio.errors import ConfigurationError, PaddlerError
from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.nursery_tree.balancer_tree import Addresses
from paddler_trio.system.config import split_address
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.system.systemd_notify import SystemdNotifier
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, LocalToAgent

bound_parsing()

QUESTION = "What is a slot?"
READY_S = 60.0
CONVERSATION_PATH = "/api/v1/continue_from_conversation_history"


class DemoError(PaddlerError):
    """The demo did not get its answer."""


def bind_demo(inference_addr: str, management_addr: str) -> BoundBalancer:
    """The given ports, or free ones on the same hosts if they are taken."""
    config = BalancerConfig(
        inference_addr=inference_addr,
        management_addr=management_addr,
        buffered_request_timeout_s=READY_S,  # the sample question waits while the model loads
    )
    try:
        return BoundBalancer.bind(config)
    except ConfigurationError as error:
        print(f"{error}\nusing free ports instead", file=sys.stderr)
    hosts = [address.rpartition(":")[0] for address in (inference_addr, management_addr)]
    try:
        return BoundBalancer.bind(
            attrs.evolve(config, inference_addr=f"{hosts[0]}:0", management_addr=f"{hosts[1]}:0")
        )
    except ConfigurationError as error:
        print(f"paddler-trio: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


async def run_demo(
    bound: BoundBalancer, model: Path, slots: int, stop: trio.Event, *, once: bool
) -> None:
    """Run the tree of the demo until it is to end, ``once`` until its sample was answered."""

    async def work(addresses: Addresses) -> None:
        print(f"agent:    demo, {slots} slots, loading {model.name}", flush=True)
        try:
            await _sample(addresses, model)
        except httpx.HTTPError as error:
            raise DemoError(f"the sample question failed: {error}") from error
        if once:
            stop.set()
        else:
            print(what_to_try(addresses), flush=True)

    await run_pair(bound, "demo", slots, stop, work)


async def run_pair(
    bound: BoundBalancer,
    name: str,
    slots: int,
    stop: trio.Event,
    work: Callable[[Addresses], Awaitable[None]],
) -> None:
    """Run a balancer and an agent of this name until ``stop``: the balancer outlives the agent, as
    in real life. ``work`` begins when both run, and is cancelled at ``stop``."""
    balancer_stop = trio.Event()
    silent = SystemdNotifier()
    async with trio.open_nursery() as nursery:
        addresses: Addresses = await nursery.start(
            partial(serve_balancer, bound, balancer_stop, notifier=silent)
        )
        print(f"balancer: inference http://{addresses.inference[0]}", flush=True)
        print(f"          management http://{addresses.management[0]}", flush=True)
        host, port = split_address(addresses.management[0])
        config = AgentConfig(management_host=host, management_port=port, slots=slots, name=name)
        async with trio.open_nursery() as agents:
            await agents.start(partial(serve_agent, config, stop, notifier=silent))
            await _unless_stopped(stop, partial(work, addresses))
        balancer_stop.set()


async def _unless_stopped(stop: trio.Event, work: Callable[[], Awaitable[None]]) -> None:
    """Ctrl-C ends the waiting for an answer, too: the request would wait for an agent that comes
    no more."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel(reason="the daemons are to end")

        nursery.start_soon(watch, name="stop of the work")
        await work()
        nursery.cancel_scope.cancel(reason="the work is done")


async def _sample(addresses: Addresses, model: Path) -> None:
    """Ask for the model, ask a question, print the answer as it comes."""
    default = BalancerDesiredState.default()
    desired = attrs.evolve(
        default,
        model=LocalToAgent(str(model)),
        inference_parameters=attrs.evolve(default.inference_parameters, temperature=0.0),
    )
    async with httpx.AsyncClient(timeout=READY_S, trust_env=False) as client:
        response = await client.put(
            f"http://{addresses.management[0]}/api/v1/balancer_desired_state",
            json=unstructure(desired),
        )
        response.raise_for_status()
        print(f"\nyou:      {QUESTION}\nmodel:    ", end="", flush=True)
        # the request waits in the buffer until the model is loaded: that is what it is for
        async with client.stream(
            "POST",
            f"http://{addresses.inference[0]}{CONVERSATION_PATH}",
            json=_question(QUESTION),
        ) as stream:
            stream.raise_for_status()
            async for line in async_lines_of(stream.aiter_bytes()):
                _print_piece(json.loads(line))
    print("\n", flush=True)


def _question(text: str) -> dict[str, object]:
    return {
        "add_generation_prompt": True,
        "conversation_history": [{"role": "user", "content": text}],
        "enable_thinking": False,
        "max_tokens": 200,
    }


def _print_piece(message: dict[str, dict[str, dict[str, dict[str, object]]]]) -> None:
    if "Error" in message:
        raise DemoError(f"the sample question failed: {message['Error']['error']}")
    result = message["Response"]["response"]["GeneratedToken"]
    (tag, value) = next(iter(result.items()))
    if tag.endswith("Token"):
        print(printable(str(value)), end="", flush=True)
    elif tag != "Done":
        raise DemoError(f"the sample question failed: {tag}: {value}")


def what_to_try(addresses: Addresses) -> str:
    """Return commands for somebody who sees this for the first time."""
    body = json.dumps(_question("Tell me a story."))
    return (
        f"panel:    http://{addresses.management[0]}/panel/\n\n"
        "try it:\n"
        f"  curl -N http://{addresses.inference[0]}{CONVERSATION_PATH} \\\n"
        f"    -H 'Content-Type: application/json' -d '{body}'\n"
        f"  paddler-trio chat 'Who are you?' --inference-addr {addresses.inference[0]}\n"
        f"  paddler-trio agents --management-addr {addresses.management[0]}\n"
        f"  paddler-trio tree --management-addr {addresses.management[0]}\n"
        "Ctrl-C ends it."
    )


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
