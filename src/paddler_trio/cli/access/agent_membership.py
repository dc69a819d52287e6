"""The balancer that an agent dials, its name and its credential: options, or what joining left."""

from __future__ import annotations

from pathlib import Path

import attrs
import typer

from paddler_trio.agent.link.agent_folder import AgentFolder, default_folder
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.tls.address import parse_address
from paddler_trio.net.tls.client_tls import ClientTls


@attrs.frozen
class Membership:
    """``token_file`` holds an API key, or the credential of this agent if ``has_credential``.

    Args:
      address: of the management service; None if nothing says it.
      ca_file, fingerprint: what the balancer's certificate is verified with, from joining.
      ignored: why a credential that is there is not used; None if it is, or there is none.
    """

    address: str | None
    name: str | None
    token_file: Path | None = None
    has_credential: bool = False
    ca_file: Path | None = None
    fingerprint: str | None = None
    ignored: str | None = None

    def trusting(self, tls: ClientTls) -> ClientTls:
        """Return what the options say, and where they say nothing, what joining left."""
        if tls.ca_file is not None or tls.fingerprint is not None:
            return tls
        return attrs.evolve(tls, ca_file=self.ca_file, fingerprint=self.fingerprint)


def membership(
    *,
    management_addr: str | None,
    name: str | None,
    token_file: Path | None,
    credential_file: Path | None,
    state_dir: Path | None,
) -> Membership:
    """A usage error for options that do not go together; ConfigurationError for broken files.

    A credential that was found by itself is shown to its own balancer only.
    """
    if token_file is not None:
        if credential_file is not None:
            raise typer.BadParameter(
                "give --token-file (an API key) or --credential-file, not both",
                param_hint="--credential-file",
            )
        return Membership(management_addr, name, token_file)
    if credential_file is not None:
        folder = AgentFolder(credential_file.absolute().parent)
        if not credential_file.exists():
            raise ConfigurationError(
                f"there is no {credential_file}: let this machine join with `paddler-trio join`"
            )
    else:
        try:
            folder = folder_of(state_dir)
        except ConfigurationError:
            return Membership(management_addr, name)
    joined = folder.joined()
    if joined is None:
        if credential_file is None:
            return Membership(management_addr, name)
        return Membership(management_addr, name, credential_file.absolute(), has_credential=True)
    is_elsewhere = management_addr is not None and not _is_same(management_addr, joined.address)
    if is_elsewhere and credential_file is None:
        reason = f"{folder.credential} is for {joined.address}, not for {management_addr}"
        return Membership(management_addr, name, ignored=reason)
    if name not in (None, joined.name):
        raise typer.BadParameter(
            f"this agent joined as {joined.name!r}: leave --name out, or let it join again as "
            f"{name!r} with `paddler-trio join --replace`",
            param_hint="--name",
        )
    return Membership(
        management_addr if is_elsewhere else joined.address,
        joined.name,
        (credential_file or folder.credential).absolute(),
        has_credential=True,
        ca_file=folder.ca if folder.ca.exists() else None,
        fingerprint=joined.fingerprint,
    )


def folder_of(state_dir: Path | None) -> AgentFolder:
    """The one of ``--state-dir``, else the default; a usage error if it is a file.

    Errors:
      ConfigurationError: there is no default.
    """
    if state_dir is not None and state_dir.exists() and not state_dir.is_dir():
        raise typer.BadParameter(
            f"{state_dir} is no folder: give one, which is made if it is not there",
            param_hint="--state-dir",
        )
    return AgentFolder((state_dir or default_folder()).absolute())


def _is_same(one: str, other: str) -> bool:
    """Return whether both are one service, with TLS or without."""
    try:
        found = [parse_address(text) for text in (one, other)]
    except ConfigurationError:
        return False  # which is refused where it is used
    return len({(each.host.lower(), each.port) for each in found}) == 1
