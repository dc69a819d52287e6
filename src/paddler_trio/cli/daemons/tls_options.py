"""How client commands verify a balancer over TLS: the same four flags for all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import attrs
import typer

from paddler_trio.cli.flags import with_flags
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import BalancerAddress, parse_address
from paddler_trio.net.tls.client_tls import ClientTls
from paddler_trio.setting import Setting

PANEL: Final = "TLS, for an address with https://"
PARAMETER: Final = "tls"


@attrs.frozen(kw_only=True)
class TlsFlags:
    """The flags, as they were given."""

    tls_ca: Annotated[
        Path | None,
        Setting(
            "PEM file with the authorities that may vouch for the balancer.",
            variable="PADDLER_TRIO_TLS_CA",
            panel=PANEL,
            unset="those of this machine",
        ),
    ] = None
    tls_fingerprint: Annotated[
        str | None,
        Setting(
            "SHA-256 of the balancer's own certificate; then no authority and no name counts.",
            variable="PADDLER_TRIO_TLS_FINGERPRINT",
            panel=PANEL,
            metavar="SHA256HEX",
        ),
    ] = None
    tls_client_cert: Annotated[
        Path | None,
        Setting(
            "PEM file with the certificate to show, if the balancer asks for one.",
            variable="PADDLER_TRIO_TLS_CLIENT_CERT",
            panel=PANEL,
        ),
    ] = None
    tls_client_key: Annotated[
        Path | None,
        Setting(
            "PEM file with its key.",
            variable="PADDLER_TRIO_TLS_CLIENT_KEY",
            panel=PANEL,
            unset="in the file of the certificate",
        ),
    ] = None


def with_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Do what `with_flags` does, and give the command's parameter ``tls`` what these flags say."""

    @functools.wraps(command)
    def with_client_tls(*, tls: TlsFlags, **others: Any) -> None:
        given = client_tls(tls.tls_ca, tls.tls_fingerprint, tls.tls_client_cert, tls.tls_client_key)
        command(tls=given, **others)

    signature = inspect.signature(command, eval_str=True)
    parameters = [
        each.replace(annotation=TlsFlags) if each.name == PARAMETER else each
        for each in signature.parameters.values()
    ]
    with_client_tls.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_flags(with_client_tls)


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
