"""Verify that this is the balancer that the token means, before its secret is sent.

With the hash of a certificate in the token, the balancer's certificates are fetched over a
connection that is not verified; one of them has to have that hash. Then it counts: an authority
vouches for the certificate of the next connection, which is verified, and a certificate that stands
alone has to be shown again. Where the system's authorities vouch for the balancer, they are what an
agent goes by later: such a certificate is replaced every few weeks, with its authorities.

Everything here blocks; only commands use it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import JoinToken
from paddler_trio.net.joining.private_file import replace_private
from paddler_trio.net.tls.address import parse_address
from paddler_trio.net.tls.client_errors import tls_problem
from paddler_trio.net.tls.client_tls import ClientTls, check_readable, unverified_context

ANSWER_S: Final = 15.0
MAX_ANSWER_BYTES: Final = 262_144
MAX_CERTIFICATES: Final = 16
PATH: Final = "/api/v2/join"


def trust_in(token: JoinToken, ca_file: Path, given: ClientTls) -> ClientTls | None:
    """Return what makes a connection one to the balancer; None for one without TLS.

    Args:
      ca_file: where the authority is written, if it is not one of the system's.
      given: the certificate that this client shows, if any; and what decides where the token has no
        hash.

    Raises:
      ConfigurationError: this is not the balancer that the token means; nothing secret was sent.
      OSError, http.client.HTTPException: it cannot be reached, or is none.
    """
    if not token.has_tls:
        return None
    system = attrs.evolve(given, ca_file=None, fingerprint=None)
    if token.certificate_hash is None:
        if given.ca_file is None:
            return given
        check_readable(given.ca_file, "--tls-ca")
        replace_private(ca_file, given.ca_file.read_bytes())
        return attrs.evolve(given, ca_file=ca_file)
    own, others = _certificates(token, given)
    found = {hashlib.sha256(der).hexdigest(): der for der in (own, *others)}
    meant = found.get(token.certificate_hash)
    if meant is None:
        raise ConfigurationError(
            f"the balancer at {token.address} shows other certificates than the token's: either "
            "somebody is between this machine and the balancer, or its certificate was replaced "
            "since the token was made; compare, and make a new token there. Nothing was sent"
        )
    if is_verified(token, system):
        return system
    if meant == own:
        return attrs.evolve(system, fingerprint=token.certificate_hash)
    replace_private(ca_file, ssl.DER_cert_to_PEM_cert(meant).encode())
    return attrs.evolve(system, ca_file=ca_file)


@contextmanager
def connected(token: JoinToken, tls: ClientTls | None) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection that is verified; ConfigurationError if it is not, OSError if there is
    none."""
    with _open(token, None if tls is None else tls.context()) as connection:
        yield connection


def read_answer(response: http.client.HTTPResponse) -> bytes:
    """Return the body of an answer; ConfigurationError if it is longer than any that a balancer
    gives."""
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise ConfigurationError(f"an answer of more than {MAX_ANSWER_BYTES} bytes: no balancer's")
    return body


@contextmanager
def _open(token: JoinToken, context: ssl.SSLContext | None) -> Iterator[http.client.HTTPConnection]:
    host, port = token.host_and_port
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
    try:
        try:
            connection.connect()
        except ssl.SSLError as error:
            raise ConfigurationError(f"{_tls_problem(token, error)}. Nothing was sent") from error
        yield connection
    finally:
        connection.close()


def _certificates(token: JoinToken, given: ClientTls) -> tuple[bytes, Sequence[bytes]]:
    """Return the balancer's own certificate, and those that it says it shows."""
    context = unverified_context()
    if given.cert_file is not None:
        context.load_cert_chain(given.cert_file, given.key_file)
    with _open(token, context) as connection:
        assert isinstance(connection.sock, ssl.SSLSocket)
        own = connection.sock.getpeercert(binary_form=True) or b""
        connection.request("GET", PATH, headers={"Accept": "application/json"})
        response = connection.getresponse()
        body = read_answer(response)
    try:
        listed = json.loads(body)["certificates"] if response.status == 200 else []
        return own, [ssl.PEM_cert_to_DER_cert(text) for text in listed[:MAX_CERTIFICATES]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{token.address} does not answer as a balancer does: is it the management service?"
        ) from error


def is_verified(token: JoinToken, tls: ClientTls) -> bool:
    """Return whether a connection can be made that is verified so."""
    try:
        with connected(token, tls):
            return True
    except ConfigurationError:
        return False


def _tls_problem(token: JoinToken, error: ssl.SSLError) -> str:
    distrust = getattr(error, "verify_message", None)
    if distrust is None:
        return tls_problem(error, parse_address(token.address))
    return (
        f"the balancer at {token.address} shows a certificate that does not convince ({distrust}): "
        "is this its name? `paddler-trio join-token new --address https://NAME:PORT` makes a token "
        "with one that the certificate has"
    )
