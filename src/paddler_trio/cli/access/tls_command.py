"""``paddler-trio tls``: certificates for a balancer, of an authority of one's own."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated

import typer

from paddler_trio.cli.balancer_http import BalancerUnreachableError
from paddler_trio.cli.client_flags import JsonOption
from paddler_trio.cli.terminal import one_line_errors, print_json, stderr, stdout
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import BalancerAddress, parse_address
from paddler_trio.net.tls.certificate import Certificate, MalformedCertificateError, date_of
from paddler_trio.net.tls.client_errors import seen_certificate, tls_problem


def fingerprint(
    address: Annotated[str, typer.Argument(help="https://host:port of one of its services.")],
    as_json: JsonOption = False,
) -> None:
    """Print the SHA-256 of the certificate that is shown there, for --tls-fingerprint.

    Nothing is sent but a handshake, and nothing is verified: compare it with the line `TLS` in the
    balancer's log before anything trusts it.
    """
    try:
        checked = parse_address(address)
        if not checked.is_tls:
            raise ConfigurationError(f"{address} has no TLS: write https://{checked.authority}")
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="ADDRESS") from error
    with one_line_errors():
        seen = _seen(checked)
        until = date_of(seen.not_after_s)
        if as_json:
            print_json({"address": str(checked), "fingerprint": seen.fingerprint, "expires": until})
            return
        print(seen.fingerprint)  # a line to copy: never wrapped
        stderr().print(
            f"not verified: this is what answers at {checked} now, valid until {until}; compare it "
            "with the balancer's own log before you pin it"
        )


def _seen(address: BalancerAddress) -> Certificate:
    try:
        return seen_certificate(address)
    except ssl.SSLError as error:
        raise BalancerUnreachableError(tls_problem(error, address)) from error
    except TimeoutError as error:
        raise BalancerUnreachableError(
            f"{address.authority} does not answer a TLS handshake: is it a balancer's port?"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BalancerUnreachableError(f"cannot reach {address}: {reason}") from error
    except MalformedCertificateError as error:
        raise BalancerUnreachableError(
            f"{address} shows no certificate that can be read: {error}"
        ) from error


tls = typer.Typer(
    no_args_is_help=True, help="Make certificates for a balancer, of an authority of your own."
)

FolderOption = Annotated[
    Path, typer.Option("--folder", help="Of the authority: ca.pem and ca.key, and what it signed.")
]


@tls.command("new-ca")
def new_ca(
    folder: FolderOption,
    name: Annotated[
        str, typer.Option(help="What people see as the issuer.")
    ] = "paddler-trio authority",
) -> None:
    """Make an authority, valid for ten years. Clients get ca.pem; ca.key stays where it is."""
    from paddler_trio.net.tls.own_authority import new_authority

    with one_line_errors():
        cert = new_authority(folder, name)
    stdout().print(str(cert), soft_wrap=True)
    stderr().print(
        f"give {cert} to clients (--tls-ca), and {cert.with_suffix('.key')} to nobody; next: "
        f"paddler-trio tls new-cert NAME --folder {folder}",
        soft_wrap=True,
    )


@tls.command("new-cert")
def new_cert(
    host: Annotated[
        list[str], typer.Argument(help="Names and addresses by which clients dial the balancer.")
    ],
    folder: FolderOption,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long it is valid.")] = 365,
    out: Annotated[
        str, typer.Option(help="What the files are called: NAME.pem and NAME.key in the folder.")
    ] = "server",
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put it in the place of one that is there: renew it."),
    ] = False,
) -> None:
    """Make a certificate and its key, signed by the authority in the folder."""
    from paddler_trio.net.tls.own_authority import new_certificate

    if not out.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise typer.BadParameter("letters, digits, dots, - and _ only", param_hint="--out")
    with one_line_errors():
        cert, key = new_certificate(folder, host, stem=out, days=days, replace=replace)
    for path in (cert, key):
        stdout().print(str(path), soft_wrap=True)
    stderr().print(
        "a balancer that uses it reads it again by itself"
        if replace
        else f"next: paddler-trio balancer --tls-cert {cert} --tls-key {key}; the same with "
        "--replace renews it",
        soft_wrap=True,
    )


tls.command()(fingerprint)
