"""``paddler-trio bench``: how fast the fleet is under load, alone or beside another server."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import attrs
import typer

from paddler_trio.cli.bench.bench_order import (
    STANDARD_OUTPUT,
    BenchOrder,
    TargetOrder,
    check_apart,
    check_level,
    check_writable,
    target_order,
)
from paddler_trio.cli.client_flags import Trust
from paddler_trio.cli.flags import Given, with_flags
from paddler_trio.cli.terminal import USAGE, one_line_errors
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST
from paddler_trio.setting import Setting
from paddler_trio.system.config import DEFAULT_INFERENCE_ADDR

COMPARED = "Against another server"


@attrs.frozen(kw_only=True)
class First:
    """The server to test."""

    address: Annotated[
        str,
        Setting(
            "host:port or base URL of the server to test: a balancer's inference service, or "
            "any other with OpenAI's chat completions.",
            flag="--inference-addr",
            variable="PADDLER_TRIO_INFERENCE_ADDR",
            metavar="URL",
        ),
    ] = DEFAULT_INFERENCE_ADDR
    model: Annotated[str, Setting("Model to ask for.", unset="the first listed")] = ""
    name: Annotated[str, Setting("What it is called in tables.", unset="host:port")] = ""


@attrs.frozen(kw_only=True)
class Second:
    """The server that it is compared with, if there is one."""

    address: Annotated[
        str,
        Setting(
            "Base URL of a second server, which takes turns with the first: llama-server, "
            "vLLM, Ollama, or another way to the same fleet.",
            flag="--against",
            metavar="URL",
            panel=COMPARED,
        ),
    ] = ""
    model: Annotated[
        str,
        Setting(
            "Model to ask it for.",
            flag="--against-model",
            panel=COMPARED,
            unset="the first listed",
        ),
    ] = ""
    name: Annotated[
        str,
        Setting(
            "What it is called in tables.",
            flag="--against-name",
            panel=COMPARED,
            unset="host:port",
        ),
    ] = ""
    key_file: Annotated[
        Path | None,
        Setting(
            "File that holds the API key to show to it; --key-file is never shown to it.",
            flag="--against-key-file",
            panel=COMPARED,
        ),
    ] = None


@with_flags
def bench(
    *,
    first: First,
    second: Second,
    given: Given[BenchOrder],
    trust: Trust,
) -> None:
    """Load-test the fleet: time to first token, inter-token latency, tokens a second."""
    with one_line_errors(codes={ConfigurationError: USAGE}):
        targets = _targets(first, second, trust)
        order = given.read(targets=targets)
        seed = order.plan.seed if "seed" in given else secrets.randbelow(2**32)
        plan = attrs.evolve(order.plan, num_targets=len(targets), seed=seed)
        order = attrs.evolve(order, plan=plan)
        check_writable(order.html)
        check_writable(None if order.json == STANDARD_OUTPUT else order.json)
        check_apart(order.html, order.json)
        for condition in order.conditions:
            check_level(condition, order.plan.concurrencies)
        from paddler_trio.cli.bench.bench_run import run  # Trio and Rich take a while to import

        raise typer.Exit(run(order))


def _targets(first: First, second: Second, trust: Trust) -> tuple[TargetOrder, ...]:
    """Return the servers in the order of their flags; ConfigurationError."""
    tested = target_order(
        first.address,
        "--inference-addr",
        name=first.name,
        model=first.model,
        key_file=trust.key_file,
        tls=trust.tls,
    )
    if not second.address:
        if second != Second():
            raise ConfigurationError("--against-… is about a second server: give --against URL")
        return (tested,)
    other = target_order(
        second.address,
        "--against",
        name=second.name,
        model=second.model,
        key_file=second.key_file,
        tls=SYSTEM_TRUST,  # the flags are about the fleet
    )
    if tested.label == other.label:
        raise ConfigurationError("both servers have one name: give --name or --against-name")
    return (tested, other)
