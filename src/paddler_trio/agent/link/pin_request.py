"""One machine tries a PIN: a join token comes of it, which goes the way of any other. It blocks.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.agent.link.balancer_trust import (
    ANSWER_S,
    PATH,
    connected,
    is_verified,
    read_answer,
    trust_in,
)
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import JoinToken, new_id, new_secret
from paddler_trio.net.joining.pin_exchange import PinBond, PinMessageError, PinSide
from paddler_trio.net.tls.client_tls import ClientTls, unverified_context

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
