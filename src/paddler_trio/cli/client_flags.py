"""Flags for reaching a balancer: its address, the key that is shown to it, what verifies it.

A class of flags for each service, so that all commands which ask the same service have the same.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Final

import attrs
import typer

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import BalancerAddress, parse_address
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.setting import Setting
from paddler_trio.system.config import DEFAULT_INFERENCE_ADDR, DEFAULT_MANAGEMENT_ADDR

MANAGEMENT_FLAG: Final = "--management-addr"
INFERENCE_FLAG: Final = "--inference-addr"


@attrs.frozen
class Trust:
    """The key that a client shows to a balancer, and what it verifies the balancer with."""

    key_file: Annotated[
        Path | None,
        Setting(
            "File that holds the API key to show to the balancer, if it asks for one.",
            variable="PADDLER_TRIO_KEY_FILE",
        ),
    ] = None
    tls: ClientTls = SYSTEM_TRUST


@attrs.frozen
class ManagementFlags:
    """The management service of a balancer, as commands are told of it."""

    address: Annotated[
        str,
        Setting(
            "[https://]host:port of the balancer's management service.",
            flag=MANAGEMENT_FLAG,
            variable="PADDLER_TRIO_MANAGEMENT_ADDR",
        ),
    ] = DEFAULT_MANAGEMENT_ADDR
    trust: Trust = Trust()
    flag: ClassVar = MANAGEMENT_FLAG


@attrs.frozen
class InferenceFlags:
    """The inference service of a balancer, as commands are told of it."""

    address: Annotated[
        str,
        Setting(
            "[https://]host:port of the balancer's inference service.",
            flag=INFERENCE_FLAG,
            variable="PADDLER_TRIO_INFERENCE_ADDR",
        ),
    ] = DEFAULT_INFERENCE_ADDR
    trust: Trust = Trust()
    flag: ClassVar = INFERENCE_FLAG


def checked_address(text: str, tls: ClientTls, *, option: str) -> BalancerAddress:
    """Return the address that a text is.

    A key must not be sent in the clear by mistake: flags of TLS with an address that has none are
    refused.

    Errors:
      typer.BadParameter: names `option`.
    """
    try:
        address = parse_address(text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if tls.is_given and not address.is_tls:
        raise typer.BadParameter(
            f"{text} has no TLS, and {_given(tls)} is for TLS: write https://{address.authority}, "
            "or leave that out",
            param_hint=option,
        )
    return address


def _given(tls: ClientTls) -> str:
    named = (
        ("--tls-ca", tls.ca_file),
        ("--tls-fingerprint", tls.fingerprint),
        ("--tls-client-cert", tls.cert_file),
    )
    return ", ".join(flag for flag, value in named if value is not None)


class LogLevel(StrEnum):
    """Levels of a log, from most to least."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="How much to log, on standard error.")
]
LogJsonOption = Annotated[
    bool | None,
    typer.Option(
        "--log-json/--log-text",
        help="Log JSON lines or columns.",
        show_default="columns on a terminal and in the journal, else JSON",
    ),
]
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide", help="Show all columns, and nothing cut, whatever the terminal's width."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts instead of text for people.")
]
