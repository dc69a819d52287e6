"""Both sides of a join with a PIN: SPAKE2 over six digits, bound to names and to a certificate.

    agent                                balancer
    A, its name, whose PIN it means  ->
                                     <-  the number of the exchange, B
    its confirmation                 ->
                                     <-  the id of a join token, its confirmation

A and B are SPAKE2's messages. Both sides get one key if they have the same PIN, the same two names
and the same certificate in mind, else keys that have nothing in common; who listens learns nothing
that would tell a right PIN from a wrong one. The agent confirms first: whoever tries a PIN at the
balancer has to say one for each try. The secret of the join token follows from the key on both
sides, and never crosses the network here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from paddler_trio.errors import ConfigurationError, PaddlerError

DIGITS: Final = 6
PIN: Final = re.compile(rf"[0-9]{{{DIGITS}}}", re.ASCII)
MESSAGE: Final = re.compile(r"[0-9a-f]{66}", re.ASCII)
"""A message of SPAKE2 in hexadecimal: a letter for its side, and a point of Ed25519."""
MISSING: Final = (
    "PINs need the library spake2, which is not installed: pip install 'paddler-trio[discovery]'"
)
_PROTOCOL: Final = b"paddler-trio join with a PIN, 1"


class PinMessageError(PaddlerError):
    """A message of the other side is none of SPAKE2."""


def new_pin() -> str:
    """Return six digits, each as likely as any other."""
    return f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"


def parsed_pin(text: str) -> str:
    """Return the digits of a PIN, which people write with blanks or hyphens; ConfigurationError,
    which does not repeat it."""
    digits = re.sub(r"[\s-]", "", text)
    if PIN.fullmatch(digits) is None:
        raise ConfigurationError(
            f"a PIN has {DIGITS} digits, as `paddler-trio join-pin` shows it at the balancer"
        )
    return digits


def can_exchange() -> bool:
    """Return whether the library is here."""
    try:
        import spake2  # noqa: F401
    except ImportError:
        return False
    return True


@attrs.frozen
class PinBond:
    """The names and the certificate that both sides have to have in mind beside the PIN.

    Args:
      agent, balancer: their names.
      fingerprint: SHA-256 of the certificate that the balancer shows, 64 hexadecimal digits.
    """

    agent: str
    balancer: str
    fingerprint: str

    @property
    def identities(self) -> tuple[bytes, bytes]:
        """Return SPAKE2's names of the agent and of the balancer."""
        return (
            _joined(_PROTOCOL, b"agent", self.agent.encode()),
            _joined(
                _PROTOCOL, b"balancer", self.balancer.encode(), bytes.fromhex(self.fingerprint)
            ),
        )


@attrs.frozen
class PinKeys:
    """Confirmations and a secret that follow from a key which both sides share."""

    _key: bytes = attrs.field(repr=False)
    _transcript: bytes = attrs.field(repr=False)

    def agent_confirmation(self) -> str:
        """Return what only an agent with the PIN can send."""
        return self._derived(b"the agent confirms").hex()

    def balancer_confirmation(self, answer: Sequence[str]) -> str:
        """Return what only the balancer can send, of everything else in its answer."""
        return self._derived(b"the balancer confirms", *(each.encode() for each in answer)).hex()

    def token_secret(self) -> str:
        """Return the secret of the join token."""
        return base64.urlsafe_b64encode(self._derived(b"join token")).decode().rstrip("=")

    def _derived(self, *what: bytes) -> bytes:
        return hmac.digest(self._key, _joined(_PROTOCOL, self._transcript, *what), "sha256")


class Spake(Protocol):
    """One side of SPAKE2, as the library has it."""

    def start(self) -> bytes:
        """Return its message, once."""
        ...

    def finish(self, message: bytes, /) -> bytes:
        """Return the key, once."""
        ...


@attrs.define(eq=False)
class PinSide:
    """One side of one exchange: it says its message once, and hears the other one once.

    Each of the two takes 5 to 12 ms of pure Python.
    """

    message: str
    _bond: PinBond
    _is_agent: bool
    _spake: Spake = attrs.field(repr=False)

    @classmethod
    def start(cls, pin: str, bond: PinBond, *, is_agent: bool) -> PinSide:
        """ConfigurationError without the library."""
        try:
            from spake2 import SPAKE2_A, SPAKE2_B
        except ImportError as error:
            raise ConfigurationError(MISSING) from error
        id_a, id_b = bond.identities
        kind = SPAKE2_A if is_agent else SPAKE2_B
        spake = kind(pin.encode(), idA=id_a, idB=id_b)
        return cls(spake.start().hex(), bond, is_agent, spake)

    def finish(self, heard: str) -> PinKeys:
        """Return the keys, which are the other side's too if it has the same PIN and bond;
        PinMessageError."""
        from spake2 import SPAKEError
        from spake2.ed25519_basic import NotOnCurve

        if MESSAGE.fullmatch(heard) is None:
            raise PinMessageError("a message of 66 hexadecimal digits was expected")
        try:
            key = self._spake.finish(bytes.fromhex(heard))
        except (SPAKEError, NotOnCurve, ValueError) as error:
            raise PinMessageError("no message of the other side") from error
        messages = (self.message, heard) if self._is_agent else (heard, self.message)
        said = _joined(*self._bond.identities, *(each.encode() for each in messages))
        return PinKeys(key, hashlib.sha256(said).digest())


def _joined(*parts: bytes) -> bytes:
    """Return the parts, each behind its length: no two lists of parts are one text."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
