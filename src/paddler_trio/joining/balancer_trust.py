"""Is this the balancer that the token means? Asked before its secret is sent.

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
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.joining.join_token import JoinToken

ANSWER_S: Final = 15.0
MAX_ANSWER_BYTES: Final = 262_144
MAX_CERTIFICATES: Final = 16
PATH: Final = "/api/v2/join"


@attrs.frozen
class Trust:
    """What makes a connection one to the balancer.

    Args:
      context: None for a connection without TLS.
      fingerprint: which the balancer's own certificate has to have; None if the context decides.
      ca_pem: the authority that vouches for it; None for the system's.
    """

    context: ssl.SSLContext | None = attrs.field(repr=False)
    fingerprint: str | None = None
    ca_pem: str | None = attrs.field(default=None, repr=False)


def trust_in(token: JoinToken) -> Trust:
    """Find out, or raise a ConfigurationError that names what is wrong. Nothing secret is sent."""
    if not token.has_tls:
        return Trust(None)
    if token.certificate_hash is None:
        return Trust(ssl.create_default_context())
    own, shown = _shown(token)
    certificates = {hashlib.sha256(der).hexdigest(): der for der in (own, *shown)}
    meant = certificates.get(token.certificate_hash)
    if meant is None:
        raise ConfigurationError(
            f"the balancer at {token.address} shows other certificates than the token's: either "
            "somebody is between this machine and the balancer, or its certificate was replaced "
            "since the token was made; compare, and make a new token there. Nothing was sent"
        )
    system = ssl.create_default_context()
    if _is_verified(token, system):
        return Trust(system)
    if meant == own:
        return Trust(_unverified(), fingerprint=token.certificate_hash)
    ca_pem = ssl.DER_cert_to_PEM_cert(meant)
    return Trust(context_for(ca_pem), ca_pem=ca_pem)


def context_for(ca_pem: str) -> ssl.SSLContext:
    """Verifies that this authority, root or not, vouches for a certificate and its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=ca_pem)
    except ssl.SSLError as error:
        raise ConfigurationError(f"the balancer's authority is no certificate: {error}") from error
    return context


@contextmanager
def connected(token: JoinToken, trust: Trust) -> Iterator[http.client.HTTPConnection]:
    """A connection that is verified; ConfigurationError if it is not, OSError if there is none."""
    host, port = token.host_and_port
    if trust.context is None:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    else:
        connection = http.client.HTTPSConnection(
            host, port, timeout=ANSWER_S, context=trust.context
        )
    try:
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise ConfigurationError(
                f"the certificate of the balancer at {token.address} is not for it "
                f"({error.verify_message}): make the token with an --address whose name the "
                "certificate has. Nothing was sent"
            ) from error
        except ssl.SSLError as error:
            raise ConfigurationError(_no_tls(token, error)) from error
        if trust.fingerprint is not None and _fingerprint(connection.sock) != trust.fingerprint:
            raise ConfigurationError(
                f"the balancer at {token.address} shows another certificate than a moment ago. "
                "Nothing was sent"
            )
        yield connection
    finally:
        connection.close()


def read_answer(response: http.client.HTTPResponse) -> bytes:
    """Its body; ConfigurationError if it is longer than any that a balancer gives."""
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise ConfigurationError(f"an answer of more than {MAX_ANSWER_BYTES} bytes: no balancer's")
    return body


def _shown(token: JoinToken) -> tuple[bytes, Sequence[bytes]]:
    """The balancer's own certificate, and those that it says it shows."""
    with connected(token, Trust(_unverified())) as connection:
        own = _der(connection.sock)
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


def _is_verified(token: JoinToken, context: ssl.SSLContext) -> bool:
    try:
        with connected(token, Trust(context)):
            return True
    except ConfigurationError:
        return False


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _der(sock: socket.socket | None) -> bytes:
    assert isinstance(sock, ssl.SSLSocket)
    return sock.getpeercert(binary_form=True) or b""


def _fingerprint(sock: socket.socket | None) -> str:
    return hashlib.sha256(_der(sock)).hexdigest()


def _no_tls(token: JoinToken, error: ssl.SSLError) -> str:
    return (
        f"no TLS with the balancer at {token.address} ({error.reason or error}): is it the "
        "management service, and was it started with --tls-cert? Nothing was sent"
    )
