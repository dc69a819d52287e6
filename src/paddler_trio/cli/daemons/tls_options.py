"""How client commands verify a balancer over TLS: the same four flags for all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import BalancerAddress, parse_address
from paddler_trio.net.tls.client_tls import ClientTls

PANEL: Final = "TLS, for an address with https://"
PARAMETER: Final = "tls"

TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        envvar="PADDLER_TRIO_TLS_CA",
        rich_help_panel=PANEL,
        help="PEM file with the authorities that may vouch for the balancer.",
        show_default="those of this machine",
    ),
]
TlsFingerprintOption = Annotated[
    str | None,
    typer.Option(
        "--tls-fingerprint",
        metavar="SHA256HEX",
        envvar="PADDLER_TRIO_TLS_FINGERPRINT",
        rich_help_panel=PANEL,
        help="SHA-256 of the balancer's own certificate; then no authority and no name counts.",
    ),
]
TlsClientCertOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-cert",
        envvar="PADDLER_TRIO_TLS_CLIENT_CERT",
        rich_help_panel=PANEL,
        help="PEM file with the certificate to show, if the balancer asks for one.",
    ),
]
TlsClientKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-key",
        envvar="PADDLER_TRIO_TLS_CLIENT_KEY",
        rich_help_panel=PANEL,
        help="PEM file with its key.",
        show_default="in the file of the certificate",
    ),
]
_OPTIONS: Final = {
    "tls_ca": TlsCaOption,
    "tls_fingerprint": TlsFingerprintOption,
    "tls_client_cert": TlsClientCertOption,
    "tls_client_key": TlsClientKeyOption,
}


def with_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the four flags; its parameter ``tls`` gets what they say.

    Typer makes one flag of each parameter, so the parameters are those that it finds here.
    """

    @functools.wraps(command)
    def with_flags(
        *args: Any,
        tls_ca: Path | None = None,
        tls_fingerprint: str | None = None,
        tls_client_cert: Path | None = None,
        tls_client_key: Path | None = None,
        **others: Any,
    ) -> None:
        tls = client_tls(tls_ca, tls_fingerprint, tls_client_cert, tls_client_key)
        command(*args, **{PARAMETER: tls}, **others)

    signature = inspect.signature(command, eval_str=True)
    kept = [each for each in signature.parameters.values() if each.name != PARAMETER]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _OPTIONS.items()
    ]
    parameters = [*kept, *added]
    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_flags


def client_tls(
    ca_file: Path | None,
    fingerprint: str | None,
    cert_file: Path | None,
    key_file: Path | None,
) -> ClientTls:
    """From the flags; a usage error for what cannot be meant."""
    try:
        return ClientTls.of(ca_file, fingerprint, cert_file, key_file)
    except ConfigurationError as error:
        flag = str(error).partition(" ")[0]
        raise typer.BadParameter(str(error), param_hint=flag) from error


def checked_address(text: str, tls: ClientTls, *, option: str) -> BalancerAddress:
    """The address; a usage error naming ``option`` unless it is one, and one for flags of TLS with
    an address that has none: a key would be sent in the clear by mistake."""
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
