"""The work of ``join-token``, ``join-pin``, ``agents credentials`` and ``agents revoke``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import attrs
import typer

from paddler_trio.cli.live.columns import Column, table
from paddler_trio.cli.management_client import Json, ManagementClient
from paddler_trio.cli.terminal import (
    print_json,
    print_lines,
    printable,
    shown_width,
    stderr,
    stdout,
)
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import JoinToken
from paddler_trio.system.config import is_loopback_host, parse_labels

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"([0-9]{1,8})([smhd]?)")
TOKENS: Final = "/api/v2/join-tokens"
PIN: Final = "/api/v2/join-pins"
CREDENTIALS: Final = "/api/v2/agent-credentials"


@attrs.frozen(kw_only=True)
class TokenView:
    id: str
    created: str
    expires: str
    uses_left: int
    labels: dict[str, str]
    by: str
    name: str | None = None


@attrs.frozen(kw_only=True)
class TokensView:
    tokens: list[TokenView]
    problem: str | None = None


@attrs.frozen(kw_only=True)
class CredentialView:
    id: str
    name: str
    created: str
    rotated: str
    last_seen: str | None
    address: str
    connected: bool
    suspicious: str | None
    labels: dict[str, str]
    token: str = ""


@attrs.frozen(kw_only=True)
class CredentialsView:
    credentials: list[CredentialView]


def order(
    *, ttl: str, uses: int, label: Sequence[str] | None, name: str | None, address: str | None
) -> Json:
    """The body of the request; a usage error for what cannot be meant."""
    return {
        "ttl_s": seconds_of(ttl),
        "uses": uses,
        "labels": _labels_of(label),
        "name": name,
        "address": address,
    }


def _labels_of(label: Sequence[str] | None) -> dict[str, str]:
    try:
        return parse_labels(label or [])
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--label") from error


def seconds_of(text: str) -> int:
    """Return the seconds of ``90``, ``30m``, ``1h`` or ``7d``; a usage error for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise typer.BadParameter(
            f"{text!r} is no duration: write one such as 90s, 30m, 1h or 7d", param_hint="--ttl"
        )
    return int(match[1]) * _UNITS[match[2] or "s"]


def make_token(client: ManagementClient, fields: Json, *, as_json: bool) -> None:
    """Print the command to paste on standard output, and what to know about it beside."""
    answer = client.ask("POST", TOKENS, body=fields)
    if as_json:
        print_json(answer)
        return
    print(answer["command"])  # a line to copy: never wrapped, never coloured
    token = JoinToken.parse(str(answer["token"]))
    uses = "once" if fields["uses"] == 1 else f"{fields['uses']} times"
    stderr().print(f"good {uses} until {answer['expires']}; it is not shown again")
    host, _ = token.host_and_port
    if is_loopback_host(host):
        stderr().print(
            f"it leads to {token.address}, which only this machine reaches; for others give "
            "--address HOST:PORT"
        )
        return
    stderr().print(f"it leads to {token.address}; for another address give --address")
    if not token.has_tls:
        stderr().print(
            "there is no TLS: joining needs --insecure there, and sends secrets in the clear; see "
            "docs/joining.md"
        )


def make_pin(
    client: ManagementClient, *, ttl: str, label: Sequence[str] | None, as_json: bool
) -> None:
    """Print the digits on standard output, and what to know about them beside."""
    fields = {"ttl_s": seconds_of(ttl), "labels": _labels_of(label)}
    answer = client.ask("POST", PIN, body=fields)
    if as_json:
        print_json(answer)
        return
    digits = str(answer["pin"])
    print(f"{digits[:3]} {digits[3:]}")
    stderr().print(
        printable(
            f"good until {answer['expires']} for one machine and {answer['tries_left']} tries; "
            f"type it at `paddler-trio agent --discover`, which finds {answer['balancer']}. An "
            "older PIN is worthless now"
        )
    )


def revoke_pin(client: ManagementClient) -> None:
    """Make the PIN worthless: nobody joins with it from now on."""
    client.ask("DELETE", PIN)
    stdout().print("the PIN is worthless; an agent that joined with it stays")


def read_tokens(client: ManagementClient) -> TokensView:
    """Return the tokens that may still be used."""
    return client.structured(client.ask("GET", TOKENS), TokensView)


def read_credentials(client: ManagementClient) -> CredentialsView:
    """Return the credentials of agents that joined with a token."""
    return client.structured(client.ask("GET", CREDENTIALS), CredentialsView)


def list_tokens(client: ManagementClient, *, wide: bool, as_json: bool) -> None:
    """Print the tokens, or why there can be none."""
    answer = client.ask("GET", TOKENS)
    if as_json:
        print_json(answer)
        return
    view = client.structured(answer, TokensView)
    if view.problem is not None:
        stderr().print(printable(view.problem))
    if not view.tokens:
        stdout().print("no join token is in force; make one with `paddler-trio join-token new`")
        return
    print_lines(table(TOKEN_COLUMNS, view.tokens, shown_width(wide=wide)))


def revoke_token(client: ManagementClient, token_id: str) -> None:
    """Make a token worthless: nobody joins with it from now on."""
    client.ask("DELETE", f"{TOKENS}/{quote(token_id, safe='')}")
    stdout().print(f"{printable(token_id)} is worthless; agents that joined with it stay")


def list_credentials(client: ManagementClient, *, wide: bool, as_json: bool) -> None:
    """Print who has joined; a suspicion and what to do about it on lines of their own."""
    answer = client.ask("GET", CREDENTIALS)
    if as_json:
        print_json(answer)
        return
    view = client.structured(answer, CredentialsView)
    if not view.credentials:
        stdout().print("no agent has joined; make a token with `paddler-trio join-token new`")
        return
    credentials = sorted(view.credentials, key=lambda credential: credential.name)
    print_lines(table(CREDENTIAL_COLUMNS, credentials, shown_width(wide=wide)))
    for each in view.credentials:
        if each.suspicious:
            stderr().print(
                printable(
                    f"{each.name}: {each.suspicious}. Somebody else may have its credential: "
                    f"`paddler-trio agents revoke {each.name}`, look after that machine, and let "
                    "it join again with `paddler-trio join --replace`"
                )
            )


def revoke_credential(client: ManagementClient, name: str) -> None:
    """Cut the agent off; say so if the token it joined with may let it in again."""
    view = read_credentials(client)
    tokens = read_tokens(client).tokens
    client.ask("DELETE", f"{CREDENTIALS}/{quote(name, safe='')}")
    stdout().print(printable(f"{name} is cut off; its credential opens nothing any more"))
    its_token = next((each.token for each in view.credentials if each.name == name), None)
    left = next((each.uses_left for each in tokens if each.id == its_token), 0)
    if left:
        stderr().print(
            f"the token it joined with can be used {left} more times: "
            f"`paddler-trio join-token revoke {its_token}` if others may have it"
        )


def _labels(labels: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "-"


def _when(text: str) -> str:
    """A time in UTC to the minute; the whole text if it is none."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return text


def _state(credential: CredentialView) -> str:
    if credential.suspicious:
        return "SUSPICIOUS"
    if credential.connected:
        return "connected"
    return "never seen" if credential.last_seen is None else f"seen {_when(credential.last_seen)}"


TOKEN_COLUMNS: Final[tuple[Column[TokenView], ...]] = (
    Column("id", 0, lambda token: token.id),
    Column("uses left", 0, lambda token: str(token.uses_left)),
    Column("expires", 0, lambda token: _when(token.expires)),
    Column("for", 0, lambda token: token.name or "any", importance=1),
    Column("labels", 16, lambda token: _labels(token.labels), importance=2),
    Column("by", 0, lambda token: token.by or "-", importance=3),
)
CREDENTIAL_COLUMNS: Final[tuple[Column[CredentialView], ...]] = (
    Column("name", 0, lambda credential: credential.name),
    Column("state", 0, _state),
    Column("address", 0, lambda credential: credential.address, importance=1),
    Column("joined", 0, lambda credential: _when(credential.created), importance=2),
    Column("secret of", 0, lambda credential: _when(credential.rotated), importance=3),
    Column("labels", 16, lambda credential: _labels(credential.labels), importance=4),
    Column("id", 0, lambda credential: credential.id, importance=5),
)
