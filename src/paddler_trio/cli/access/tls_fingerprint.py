"""``paddler-trio tls fingerprint``: what a balancer's certificate is, for a pin."""

from __future__ import annotations

import ssl
from typing import Annotated

import typer

from paddler_trio.cli.balancer_http import BalancerUnreachableError
from paddler_trio.cli.daemons.options import JsonOption
from paddler_trio.cli.terminal import one_line_errors, print_json, stderr
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
