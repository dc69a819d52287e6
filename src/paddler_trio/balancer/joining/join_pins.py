"""The PIN of a running balancer: shown to an operator, typed at a new machine, good for one agent.

There is one PIN at a time; to make another makes the one before worthless. It ends with the agent
that joined with it, after ``TRIES`` tries, after some minutes, and with the balancer: nothing of it
is written anywhere. A try begins with the first message of an exchange, whatever becomes of it, so
that nobody makes this process compute more than ``TRIES`` exchanges for each PIN.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import inf
from typing import Final

import attrs
import trio

from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.balancer.joining.join_rules import JoinConflictError, JoinRefusedError
from paddler_trio.balancer.joining.stored_agents import StoredToken
from paddler_trio.net.joining.join_token import new_id
from paddler_trio.net.joining.pin_exchange import (
    PinBond,
    PinKeys,
    PinMessageError,
    PinSide,
    new_pin,
)

TRIES: Final = 3
EXCHANGE_S: Final = 30.0
"""Between the first message of an exchange and its confirmation."""
TOKEN_S: Final = 60
"""How long the join token is good that an exchange ends with: the machine uses it at once."""


@attrs.define(eq=False)
class JoinPin:
    """The PIN in force.

    Args:
      labels: of the agent that joins with it.
      by: the name of the key that made it.
      expires_s: on trio's clock.
    """

    _pin: str = attrs.field(repr=False)
    labels: Mapping[str, str]
    by: str
    expires_s: float
    tries_left: int = TRIES
    _under_way: dict[str, tuple[PinBond, PinKeys, float]] = attrs.field(
        factory=dict, init=False, repr=False
    )
    _num_beginning: int = attrs.field(default=0, init=False)

    def is_over(self, now_s: float) -> bool:
        """Return whether nobody can join with it any more."""
        if now_s >= self.expires_s:
            return True
        is_tried = self._num_beginning or any(
            now_s < until_s for _, _, until_s in self._under_way.values()
        )
        return self.tries_left == 0 and not is_tried

    async def begun(self, message: str, bond: PinBond) -> tuple[str, str]:
        """Count a try; return the number of an exchange and the balancer's message.

        Raises:
          JoinRefusedError: the message is none.
          ConfigurationError: the library is not here.
        """
        self.tries_left -= 1
        until_s = trio.current_time() + EXCHANGE_S

        def exchanged() -> tuple[str, PinKeys]:
            side = PinSide.start(self._pin, bond, is_agent=False)
            return side.message, side.finish(message)

        number = new_id()
        self._num_beginning += 1
        try:
            answer, keys = await trio.to_thread.run_sync(exchanged)
        except PinMessageError as error:
            raise JoinRefusedError(str(error)) from error
        finally:
            self._num_beginning -= 1
        self._under_way[number] = bond, keys, until_s
        return number, answer

    def confirmed(self, number: str, confirmation: str, now_s: float) -> tuple[PinBond, PinKeys]:
        """Return what an exchange came to, which is over with this; JoinRefusedError."""
        bond, keys, until_s = self._under_way.pop(number, (None, None, -inf))
        if bond is None or keys is None or now_s >= min(until_s, self.expires_s):
            raise JoinRefusedError("there is no such exchange, or it took too long")
        if not hmac.compare_digest(keys.agent_confirmation(), confirmation):
            raise JoinRefusedError("the PIN is wrong, or somebody is between the two")
        return bond, keys


@attrs.define(eq=False)
class JoinPins:
    """See the module docstring.

    Args:
      name: of the balancer, as it announces itself.
      fingerprint: of the certificate that its ports show; None without TLS.
    """

    registry: AgentRegistry
    name: str
    fingerprint: Callable[[], str | None]
    _pin: JoinPin | None = attrs.field(default=None, init=False)

    @property
    def in_force(self) -> JoinPin | None:
        """Return the PIN with which somebody may join."""
        if self._pin is not None and self._pin.is_over(trio.current_time()):
            self._pin = None
        return self._pin

    def make(self, *, ttl: timedelta, labels: Mapping[str, str], by: str) -> str:
        """Put another PIN in force, and return its digits, which are kept for it alone."""
        digits = new_pin()
        expires_s = trio.current_time() + ttl.total_seconds()
        self._pin = JoinPin(digits, labels, by, expires_s)
        return digits

    def revoke(self) -> bool:
        """Make the PIN worthless; False if there is none."""
        was_there, self._pin = self.in_force is not None, None
        return was_there

    async def begin(self, message: str, agent: str, balancer: str) -> tuple[str, str]:
        """Begin an exchange; see :meth:`JoinPin.begun`.

        Args:
          balancer: whose PIN the agent means.

        Raises:
          JoinConflictError: it means another balancer.
          JoinRefusedError: there is no PIN to try, or the message is none.
        """
        if balancer != self.name:
            raise JoinConflictError(
                f"this balancer is called {self.name!r}, and the PIN of {balancer!r} is meant"
            )
        pin, fingerprint = self.in_force, self.fingerprint()
        if pin is None or pin.tries_left == 0 or fingerprint is None:
            raise JoinRefusedError("no PIN is in force")
        return await pin.begun(message, PinBond(agent, self.name, fingerprint))

    async def confirm(self, number: str, confirmation: str) -> tuple[StoredToken, PinKeys]:
        """End an exchange: a join token for one agent, and the keys, from which its secret follows.

        Raises:
          JoinRefusedError: it is not confirmed.
          JoinConflictError, ConfigurationError: no token can be made; the PIN is spent.
        """
        pin = self.in_force
        if pin is None:
            raise JoinRefusedError("no PIN is in force")
        bond, keys = pin.confirmed(number, confirmation, trio.current_time())
        self._pin = None  # before anything is awaited: it is for one agent
        token, _ = await self.registry.make_token(
            ttl=timedelta(seconds=TOKEN_S),
            uses=1,
            labels=pin.labels,
            name=bond.agent,
            by=f"a PIN of {pin.by}",
            secret=keys.token_secret(),
        )
        return token, keys
