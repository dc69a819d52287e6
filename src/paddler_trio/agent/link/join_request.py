"""One machine joins: from the token's text to a credential in its folder. It blocks."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import UTC, datetime
from typing import Final

import attrs

from paddler_trio.agent.link.agent_folder import AgentFolder, Joined
from paddler_trio.agent.link.balancer_trust import PATH, connected, read_answer, trust_in
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentCredential, check_agent_name
from paddler_trio.net.joining.join_token import ID, JoinToken, digest_of, new_secret
from paddler_trio.net.tls.address import parse_address
from paddler_trio.net.tls.client_errors import tls_problem
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.system.config import is_loopback_host
from paddler_trio.wire.scalars import rfc3339

ATTEMPTS: Final = 3
"""An answer that was lost on its way is asked for again; no further use is counted."""
MAX_SHOWN_CHARS: Final = 400


@attrs.frozen
class JoinResult:
    """``has_tls``: the secret crossed the network encrypted, if it crossed one."""

    joined: Joined
    labels: dict[str, str]
    credential_id: str


def join(
    token: JoinToken,
    folder: AgentFolder,
    *,
    name: str | None,
    host_name: str | None,
    is_replacing: bool = False,
    is_insecure: bool = False,
    tls: ClientTls = SYSTEM_TRUST,
) -> JoinResult:
    """Swap the token for a credential and store it.

    Args:
      host_name: what the agent is called if neither ``name`` nor the token says it.
      tls: has the certificate that this client shows, if the balancer asks for one.

    Raises:
      ConfigurationError: refused, unreachable, or not the balancer that the token means; what is
        stored is as it was.
    """
    _check(token, folder, name=name, is_replacing=is_replacing, is_insecure=is_insecure)
    folder.make()
    secret = folder.pending_secret(token.id) or new_secret()
    folder.keep_pending(token.id, secret)
    body = json.dumps(
        {
            "id": token.id,
            "secret": token.secret,
            "credential_sha256": digest_of(secret).hex(),
            "name": name,
            "host": host_name,
        }
    )
    trust, status, text = _asked(token, folder, tls, body)
    if status not in (200, 201):
        if status in (400, 401, 404, 409):  # this secret will never be answered for
            folder.forget_pending()
        raise ConfigurationError(_refusal(token, status, text))
    found = _accepted(text)
    if found is None:
        raise ConfigurationError(
            f"{token.address} does not answer as a balancer does: is it the management service?"
        )
    credential_id, joined_name, labels = found
    pin = None if trust is None else trust.fingerprint
    joined = Joined(token.address, joined_name, pin, rfc3339(datetime.now(UTC)))
    credential = AgentCredential(credential_id, secret)
    has_ca = trust is not None and trust.ca_file is not None
    folder.keep(joined, credential, has_new_ca=has_ca)
    return JoinResult(joined, labels, credential_id)


def _check(
    token: JoinToken,
    folder: AgentFolder,
    *,
    name: str | None,
    is_replacing: bool,
    is_insecure: bool,
) -> None:
    """Raise ConfigurationError if nothing may be sent."""
    if not (token.has_tls or is_insecure or is_loopback_host(token.host_and_port[0])):
        raise ConfigurationError(
            f"the token leads to {token.address} without TLS: its secret, and later the agent's "
            "credential, all prompts and all answers would cross the network as they are. Start "
            "the balancer with --tls-cert and --tls-key and make a new token, or say --insecure if "
            "everybody on this network is trusted. Nothing was sent"
        )
    if name is not None:
        check_agent_name(name)
    if folder.has_joined and not is_replacing:
        before = folder.joined()
        called = "" if before is None else f" as {before.name!r} at {before.address}"
        raise ConfigurationError(
            f"this machine has joined already{called} ({folder.credential}): say --replace to give "
            "that up, or give another --state-dir for another agent"
        )


def _asked(
    token: JoinToken, folder: AgentFolder, tls: ClientTls, body: str
) -> tuple[ClientTls | None, int, str]:
    """Return how the balancer was verified, the status of its answer and its text.

    Raises:
      ConfigurationError: it cannot be reached, or is not the one that the token means.
    """
    host, port = token.host_and_port
    try:
        trust = trust_in(token, folder.new_ca, tls)
        return trust, *_answer(token, trust, body)
    except ssl.SSLError as error:
        raise ConfigurationError(tls_problem(error, parse_address(token.address))) from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationError(
            f"cannot join at {host}, port {port}: {reason or type(error).__name__}; try again with "
            "the same token"
        ) from error


def _answer(token: JoinToken, trust: ClientTls | None, body: str) -> tuple[int, str]:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with connected(token, trust) as connection:
                headers = {"Content-Type": "application/json", "Connection": "close"}
                connection.request("POST", PATH, body, headers)
                response = connection.getresponse()
                return response.status, read_answer(response).decode(errors="replace")
        except (http.client.HTTPException, ConnectionError, TimeoutError):
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _refusal(token: JoinToken, status: int, text: str) -> str:
    said = text.strip()[:MAX_SHOWN_CHARS]
    if status == 404:
        said = said or "it has no such service: is it the management address of a paddler-trio?"
    return f"the balancer at {token.address} refused ({status}): {said}"


def _accepted(text: str) -> tuple[str, str, dict[str, str]] | None:
    try:
        answer = json.loads(text)
        credential_id, name, labels = answer["id"], answer["name"], answer["labels"]
        check_agent_name(name)
    except (ValueError, TypeError, KeyError, RecursionError, ConfigurationError):
        return None
    if not isinstance(credential_id, str) or ID.fullmatch(credential_id) is None:
        return None
    return (credential_id, name, dict(labels)) if isinstance(labels, dict) else None
