"""Values of the daemons' flags that a type cannot judge: addresses, networks, labels.

They are judged where they are read, so that a flag, a variable, a file and ``config check`` refuse
the same ones. What only this machine can know (is the port free, is the folder there) is found out
at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import typer

from paddler_trio.agent.servers.metadata_items import stood_in
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import parse_address
from paddler_trio.system.config import check_display_name, parse_labels, split_address

T = TypeVar("T")

DEFAULT_STATE_DATABASE: Final = "memory://"


def judged(judge: Callable[[str], object]) -> Callable[[str | None], str | None]:
    """A typer callback that leaves a value as it is, or refuses it with what ``judge`` raises."""

    def callback(value: str | None) -> str | None:
        if value is not None:
            _judge(judge, value)
        return value

    return callback


def all_judged(judge: Callable[[list[str]], object]) -> Callable[[list[str] | None], list[str]]:
    """The same for a flag that may be repeated; where it is not given, there is an empty list,
    which older versions of typer need here."""

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


ADDRESS = judged(lambda text: split_address(stood_in(text)))
"""``host:port`` to serve on, or to send to; the host may be ``aws:metadata:ITEM``."""
BALANCER_ADDRESS = judged(lambda text: parse_address(stood_in(text)))
"""``[https://]host:port`` to dial; the same."""
UPSTREAM = judged(stood_in)
"""The items in an address that is judged where it is dialled."""
NAME = judged(lambda text: check_display_name(stood_in(text, is_address=False)))
"""A name, in which there may be items, too."""
LABELS = all_judged(parse_labels)


def _state_database(url: str) -> None:
    if url == DEFAULT_STATE_DATABASE:
        return
    from paddler_trio.balancer.fleet.state_database import state_path

    state_path(url)


def _networks(texts: Sequence[str]) -> None:
    from paddler_trio.balancer.joining.legacy_networks import FLAG
    from paddler_trio.net.networks import parse_networks

    parse_networks(texts, FLAG)


def _proxies(texts: Sequence[str]) -> None:
    from paddler_trio.net.networks import parse_networks
    from paddler_trio.net.server.trusted_proxies import FLAG

    parse_networks(texts, FLAG)


def _host_names(texts: Sequence[str]) -> None:
    from paddler_trio.net.server.allowed_hosts import allowed_names

    allowed_names(texts)


def _openai_limits(texts: Sequence[str]) -> None:
    from paddler_trio.balancer.apis.limits import ApiLimits

    ApiLimits.parse(texts)


def _collector(url: str) -> None:
    from paddler_trio.telemetry.otlp_exporter import traces_url

    traces_url(url)


# each imports what a daemon has anyway, and `--help` and the client commands do without
STATE_DATABASE = judged(_state_database)
NETWORKS = all_judged(_networks)
PROXIES = all_judged(_proxies)
HOST_NAMES = all_judged(_host_names)
OPENAI_LIMITS = all_judged(_openai_limits)
COLLECTOR = judged(_collector)
