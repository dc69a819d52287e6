"""Verify that this is the balancer that the token means, before its secret is sent.

With the hash of a certificate in the token, the balancer's certificates are fetched over a
connection that is not verified; one of them has to have that hash. Then it counts: an authority
vouches for the certificate of the next connection, which is verified, and a certificate that stands
alone has to be shown again. Where the system's authorities vouch for the balancer, they are what an
agent goes by later: such a certificate is replaced every few weeks, with its authorities.

Everything here blocks; only commands use it.

One machine tries a PIN: a join token comes of it, which goes the way of any other. It blocks.

The connection is verified by nothing at first. Its certificate is what the PIN is bound to: if
another one stands between, the balancer has another certificate in mind, and both sides' keys have
nothing in common. What follows goes over connections with this very certificate.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import replace_private
from paddler_trio.net.joining.join_token import JoinToken, new_id, new_secret
from paddler_trio.net.joining.pin_exchange import PinBond, PinMessageError, PinSide
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


MAX_SHOWN_CHARS: Final = 400


class UnreachableError(ConfigurationError):
    """Nobody answers at an address; no PIN was tried there."""


def token_for_pin(
    pin: str, address: str, *, agent: str, balancer: str, ca_file: Path, tls: ClientTls
) -> JoinToken:
    """Swap a PIN for a join token that is good for a minute.

    Args:
      address: of the management service, with ``https://``.
      agent, balancer: the names of both.
      ca_file: where the balancer's authority is written, as `trust_in` does it.
      tls: has the certificate that this client shows, if the balancer asks for one.

    Raises:
      UnreachableError: nobody answers there.
      ConfigurationError: refused, broken off, or not the balancer that shows the PIN.
    """
    place = JoinToken(new_id(), new_secret(), None, address)
    try:
        own = _shown_certificate(place, tls)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise UnreachableError(f"cannot join at {address}: {reason}") from error
    try:
        pinned = attrs.evolve(tls, ca_file=None, fingerprint=own)
        side = PinSide.start(pin, PinBond(agent, balancer, own), is_agent=True)
        with connected(place, pinned) as connection:
            body = {"message": side.message, "name": agent, "balancer": balancer}
            begun = _asked(connection, f"{PATH}/pin", body, ("exchange", "message"))
            keys = side.finish(begun["message"])
            body = {"exchange": begun["exchange"], "confirmation": keys.agent_confirmation()}
            fields = ("token", "certificate_sha256", "confirmation")
            end = _asked(connection, f"{PATH}/pin/confirm", body, fields)
        confirmed = keys.balancer_confirmation([end["token"], end["certificate_sha256"]])
        if not hmac.compare_digest(confirmed.encode(), end["confirmation"].encode()):
            raise ConfigurationError(
                f"{address} does not know the PIN, and is not the balancer that shows it. Nothing "
                "was sent"
            )
        token = JoinToken(end["token"], keys.token_secret(), end["certificate_sha256"], address)
        if not is_verified(token, trust_in(token, ca_file, tls) or tls):
            # its authority signed other names: the certificate itself is what counts
            token = attrs.evolve(token, certificate_hash=own)
    except PinMessageError as error:
        raise ConfigurationError(f"{address} does not answer as a balancer does") from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(
            f"cannot join at {address}: {reason or type(error).__name__}"
        ) from error
    return token


def _shown_certificate(place: JoinToken, tls: ClientTls) -> str:
    """Return the SHA-256 of the certificate that whoever is there shows; OSError."""
    context = unverified_context()
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    host, port = place.host_and_port
    connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        shown = connection.sock.getpeercert(binary_form=True) or b""
    finally:
        connection.close()
    return hashlib.sha256(shown).hexdigest()


def _asked(
    connection: http.client.HTTPConnection,
    path: str,
    body: Mapping[str, str],
    fields: tuple[str, ...],
) -> Mapping[str, str]:
    """Return these fields of the answer; ConfigurationError if it is a refusal, or none."""
    connection.request(
        "POST", path, body=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    text = read_answer(response).decode("utf-8", "replace")
    if response.status != 200:
        said = " ".join(text.split())[:MAX_SHOWN_CHARS]
        raise ConfigurationError(f"the balancer refused ({response.status}): {said}")
    try:
        answer = json.loads(text)
        found = {field: answer[field] for field in fields}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PinMessageError("no answer of a balancer") from error
    if not all(isinstance(each, str) for each in found.values()):
        raise PinMessageError("no answer of a balancer")
    return found
