"""An agent replaces the secret of its credential once a day, over its first link.

The steps are those of the balancer's ``agent_registry.py``: the hash of a new secret is sent with
that of the stored one, the balancer stores it and says so, and only then the secret takes the old
one's place in the file. The next
dialling shows it. A link that breaks, or a process that is killed, between any two steps leaves a
secret that works: a balancer that heard of a new one takes the old one until the new one is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.agent.link.agent_folder import age_s, replace_secret
from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import digest_of, new_secret
from paddler_trio.system.durable import read_secret
from paddler_trio.wire.trio.upstream_messages import Rotate

log = structlog.get_logger("link")

LIFE_S: Final = 24 * 3600.0
ANSWER_S: Final = 30.0
AGAIN_S: Final = 3600.0


@attrs.define(eq=False)
class CredentialRotation:
    """See the module docstring.

    Args:
      path: of the credential's file; its time is that of the secret.
    """

    path: Path
    _sha256: str | None = attrs.field(default=None, init=False)
    """The hash of the secret that was sent and not confirmed yet."""
    _is_confirmed: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, send: Callable[[Rotate], None]) -> None:
        """Rotate until cancelled; ``send`` queues a message to the balancer."""
        while True:
            age = await trio.to_thread.run_sync(age_s, self.path)
            await trio.sleep(max(0.0, LIFE_S - age))
            if not await self._rotate(send):
                await trio.sleep(AGAIN_S)

    def confirmed(self, sha256: str) -> None:
        """Note that the balancer has stored this hash."""
        if sha256 == self._sha256:
            self._is_confirmed.set()

    async def _rotate(self, send: Callable[[Rotate], None]) -> bool:
        try:
            stored = await trio.to_thread.run_sync(read_secret, self.path)
        except ConfigurationError as error:
            log.error("this agent's secret is not replaced", reason=str(error))
            return False
        replaces = digest_of(stored.rpartition(".")[2]).hex()
        secret = new_secret()
        self._sha256, self._is_confirmed = digest_of(secret).hex(), trio.Event()
        send(Rotate(self._sha256, replaces))
        with trio.move_on_after(ANSWER_S):
            await self._is_confirmed.wait()
        if not self._is_confirmed.is_set():
            log.warning("the balancer does not replace this agent's secret: the old one stays")
            return False
        try:
            await trio.to_thread.run_sync(replace_secret, self.path, secret)
        except ConfigurationError as error:
            log.error("the new secret was not stored: the old one stays", reason=str(error))
            return False
        log.info("this agent's secret was replaced", file=str(self.path))
        return True
