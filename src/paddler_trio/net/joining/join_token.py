"""The token that an operator pastes on a new machine: the balancer's address, how to know it, and a
secret.

    ptj1.ID.SECRET.HASH.ADDRESS

``ID`` (12 hexadecimal digits) is public and stands in logs. ``SECRET`` are 32 random bytes in
base64url. ``HASH`` is the SHA-256 of the DER of a certificate that the balancer shows, its
authority's or its own; ``-`` where there is none to compare: without TLS, or where the system's
authorities are to decide. ``ADDRESS`` is ``host:port``, with ``https://`` before it if there is
TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.config import split_address

PREFIX: Final = "ptj1"
ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
MAX_TOKEN_CHARS: Final = 480
MAX_ADDRESS_CHARS: Final = 300
"""The longest name of a host has 253."""
TLS_SCHEME: Final = "https://"
NO_HASH: Final = "-"

ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TOKEN: Final = re.compile(rf"{PREFIX}\.([^.]*)\.([^.]*)\.([^.]*)\.(.*)", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,253}", re.ASCII)


@attrs.frozen
class JoinToken:
    """``certificate_hash``: None where there is none to compare. ConfigurationError for parts that
    cannot stand in one."""

    id: str
    secret: str = attrs.field(repr=False)
    certificate_hash: str | None
    address: str

    def __attrs_post_init__(self) -> None:
        if ID.fullmatch(self.id) is None or SECRET.fullmatch(self.secret) is None:
            raise ConfigurationError("a join token's id or secret is not what this program makes")
        if self.certificate_hash is not None:
            if HASH.fullmatch(self.certificate_hash) is None:
                raise ConfigurationError(
                    "a join token's hash must be 64 hexadecimal digits, or - for none"
                )
            if not self.has_tls:
                raise ConfigurationError(
                    f"a join token with a certificate's hash needs an address with {TLS_SCHEME}"
                )
        check_address(self.address)

    @property
    def has_tls(self) -> bool:
        """Return whether the balancer is to be reached over TLS."""
        return self.address.startswith(TLS_SCHEME)

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Return host and port of the management service; an IPv6 host comes without brackets."""
        return split_address(self.address.removeprefix(TLS_SCHEME))

    def render(self) -> str:
        """One line without spaces and quotes."""
        hash_text = self.certificate_hash or NO_HASH
        return f"{PREFIX}.{self.id}.{self.secret}.{hash_text}.{self.address}"

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Strict; the ConfigurationError quotes nothing of the text, which may be a secret."""
        if len(text) > MAX_TOKEN_CHARS:
            raise ConfigurationError(
                f"a join token has at most {MAX_TOKEN_CHARS} characters, this has {len(text)}"
            )
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"this is no join token: one begins with {PREFIX}. and is one line; copy all of "
                "what `paddler-trio join-token new` printed"
            )
        token_id, secret, certificate_hash, address = match.groups()
        return cls(
            token_id, secret, None if certificate_hash == NO_HASH else certificate_hash, address
        )


def check_address(address: str) -> None:
    """ConfigurationError unless it is ``host:port`` or ``https://host:port``."""
    if len(address) > MAX_ADDRESS_CHARS:
        raise ConfigurationError(
            f"an address of {len(address)} characters; the limit is {MAX_ADDRESS_CHARS}"
        )
    host, port = split_address(address.removeprefix(TLS_SCHEME))
    if _HOST.fullmatch(host) is None:
        raise ConfigurationError(f"{host[:80]!r} is no name or address of a host")
    if port == 0:
        raise ConfigurationError(f"{address!r} has the port 0, on which nothing listens")


def new_id() -> str:
    """Public; of a token or a credential."""
    return secrets.token_hex(ID_BYTES)


def new_secret() -> str:
    """A fresh secret of a token or a credential."""
    return secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 that is kept of a secret. The secret cannot be guessed, so one round hides
    it: see ``balancer/keys/api_keys.py``.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def matches(secret: str, digest: bytes | None) -> bool:
    """Return whether ``digest`` is of this secret, in constant time; None takes as long and never
    matches.
    """
    found = hmac.compare_digest(digest_of(secret), digest or bytes(hashlib.sha256().digest_size))
    return found and digest is not None
