"""Values of the daemons' flags that a type cannot judge: addresses, networks, labels.

They are judged where they are read, so that a flag, a variable, a file and ``config check`` refuse
the same ones. What only this machine can know (is the port free, is the folder there, what does
``aws:metadata:ITEM`` stand for) is found out at the start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import typer

from paddler_trio.agent.servers.metadata_items import items_in, stood_in
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import parse_address
from paddler_trio.setting import Kind, Reading
from paddler_trio.system.config import check_display_name, parse_labels, split_address
from paddler_trio.system.settings.balancer_config import DEFAULT_STATE_DATABASE
from paddler_trio.wire.shape_error import ShapeError
from paddler_trio.wire.trio.placement_rules import check_deployment

T = TypeVar("T")

GGUF_MAGIC: Final = b"GGUF"
_UNITS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGTP]?)(i?)B?", re.IGNORECASE)


def judged(judge: Callable[[str], object]) -> Callable[[str | None], str | None]:
    """A typer callback that leaves a value as it is, or refuses it with what ``judge`` raises."""

    def callback(value: str | None) -> str | None:
        if value is not None:
            _judge(judge, value)
        return value

    return callback


def all_judged(judge: Callable[[list[str]], object]) -> Callable[[list[str] | None], list[str]]:
    """Judge each value of a flag that may be repeated; where it is not given, there is an empty
    list, which older versions of typer need here."""

    def callback(values: list[str] | None) -> list[str]:
        if values:
            _judge(judge, values)
        return values or []

    return callback


def _judge(judge: Callable[[T], object], value: T) -> None:
    try:
        judge(value)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


def told_address(text: str) -> str:
    """Return an address with the hosts that the machine says; as it is if it asks for none.

    It blocks while the machine is asked, for seconds where nobody answers. ConfigurationError.
    """
    return _told(text, is_address=True)


def told_name(text: str) -> str:
    """Return the same of a name, which may be ``aws:metadata:instance-id`` as well."""
    return _told(text, is_address=False)


def _told(text: str, *, is_address: bool) -> str:
    if not items_in(text):
        return text
    # daemons have both; --help answers without
    import trio

    from paddler_trio.agent.servers.instance_metadata import resolved_text

    return trio.run(partial(resolved_text, text, os.environ, is_address=is_address))


def size_in_bytes(text: str) -> int:
    """Read ``200GB`` (a power of 1000), ``180GiB`` (of 1024) or plain bytes; typer.BadParameter."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise typer.BadParameter(f"{text!r} is no size: write one such as 200GB or 180GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2].upper()])


def tensor_split(text: str) -> list[float]:
    """Read ``3,1`` as numbers; typer.BadParameter if one is none."""
    try:
        parts = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r}: write numbers with commas, such as 3,1", param_hint="--tensor-split"
        ) from error
    if any(not 0 <= part < float("inf") for part in parts):
        raise typer.BadParameter(f"{text!r}: no part may be < 0", param_hint="--tensor-split")
    return parts


def rpc_servers(text: str) -> list[str]:
    """Read ``host:port,...`` as a list; typer.BadParameter if one is no address."""
    servers = text.split(",")
    for server in servers:
        try:
            split_address(server)
        except ConfigurationError as error:
            raise typer.BadParameter(str(error), param_hint="--rpc") from error
    return servers


def draft_model_path(path: Path) -> str:
    """Return the path as the engine is given it; typer.BadParameter for what is no GGUF file here.

    Whether it has the vocabulary of a model, shows when that is loaded.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--draft-model") from error
    if magic != GGUF_MAGIC:
        raise typer.BadParameter(
            f"{path} is no GGUF file: give a small model of the same vocabulary",
            param_hint="--draft-model",
        )
    return str(path)


def upstream_deployment(name: str) -> str:
    """Return the name; typer.BadParameter if a server in ``--upstream`` cannot be offered so."""
    # it imports numpy, which `--help` and the client commands do without
    from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT

    try:
        check_deployment(name, "deployment")
    except ShapeError as error:
        raise typer.BadParameter(error.text, param_hint="--deployment") from error
    if name == DEFAULT_DEPLOYMENT:
        raise typer.BadParameter(
            f"{name!r} is the deployment of Paddler's desired state; choose another name",
            param_hint="--deployment",
        )
    return name


def _state_database(url: str) -> None:
    if url == DEFAULT_STATE_DATABASE:
        return
    from paddler_trio.balancer.fleet.state_database import state_path

    state_path(url)


def _networks(texts: Sequence[str]) -> None:
    from paddler_trio.balancer.joining.agent_guard import FLAG
    from paddler_trio.net.networks import parse_networks

    parse_networks(texts, FLAG)


def _proxies(texts: Sequence[str]) -> None:
    from paddler_trio.net.networks import parse_networks
    from paddler_trio.net.server.client_identity import FLAG

    parse_networks(texts, FLAG)


def _host_names(texts: Sequence[str]) -> None:
    from paddler_trio.net.server.allowed_hosts import allowed_names

    allowed_names(texts)


def _aliases(names: Sequence[str]) -> None:
    from paddler_trio.wire.paddler.desired_state import NoModel
    from paddler_trio.wire.trio.fleet_state import DEFAULT, DeploymentSpec

    try:
        DeploymentSpec(name=DEFAULT, model=NoModel(), aliases=tuple(names))
    except ShapeError as error:
        raise ConfigurationError(error.text) from error


def _openai_limits(texts: Sequence[str]) -> None:
    from paddler_trio.balancer.apis.limits import ApiLimits

    ApiLimits.parse(texts)


def _collector(url: str) -> None:
    from paddler_trio.telemetry.otlp_exporter import traces_url

    traces_url(url)


BALANCER_ADDRESS: Final = judged(lambda text: parse_address(stood_in(text)))
"""``[https://]host:port`` to dial; the host may be ``aws:metadata:ITEM``."""

# each imports what a daemon has anyway, and `--help` and the client commands do without
READINGS: Final = {
    Kind.ADDRESS: Reading(judged(lambda text: split_address(stood_in(text))), told_address),
    Kind.SERVER: Reading(judged(stood_in), told_address),  # the rest is judged where it is dialled
    Kind.NAME: Reading(
        judged(lambda text: check_display_name(stood_in(text, is_address=False))), told_name
    ),
    Kind.DEPLOYMENT: Reading(make=upstream_deployment),
    Kind.LABELS: Reading(all_judged(parse_labels), parse_labels, list[str]),
    Kind.SIZE: Reading(judged(size_in_bytes), size_in_bytes, str),
    Kind.STATE_DATABASE: Reading(judged(_state_database)),
    Kind.NETWORKS: Reading(all_judged(_networks)),
    Kind.PROXIES: Reading(all_judged(_proxies)),
    Kind.HOST_NAMES: Reading(all_judged(_host_names)),
    Kind.ALIASES: Reading(all_judged(_aliases)),
    Kind.OPENAI_LIMITS: Reading(all_judged(_openai_limits)),
    Kind.COLLECTOR: Reading(judged(_collector)),
    Kind.TENSOR_SPLIT: Reading(judged(tensor_split), tensor_split, str),
    Kind.RPC_SERVERS: Reading(judged(rpc_servers), rpc_servers, str),
    Kind.DRAFT_MODEL: Reading(make=draft_model_path, given=Path),
}
