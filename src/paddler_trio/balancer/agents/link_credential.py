"""Say what a credential means on the link that was opened with it: a name, labels, another
secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import structlog
import trio

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.wire.trio.trio_link import DEFAULT_DEPLOYMENT, Placement, render_extension
from paddler_trio.wire.trio.upstream_messages import Rotate, Rotated

log = structlog.get_logger("agents")


@attrs.define(eq=False)
class LinkCredential:
    """``identity``: None on a link without a credential, where an agent is what it says it is."""

    identity: AgentIdentity | None
    agent_id: str
    _is_rotating: bool = attrs.field(default=False, init=False)

    def name(self, claimed: str | None) -> str | None:
        """Return what an agent is called that registers under this name."""
        return claimed or (None if self.identity is None else self.identity.name)

    def name_problem(self, claimed: str | None, placement: Placement | None) -> str | None:
        """Why it may not register under this name; None if it may."""
        deployment = DEFAULT_DEPLOYMENT if placement is None else placement.deployment
        return None if self.identity is None else self.identity.name_problem(claimed, deployment)

    def labels(self, claimed: Mapping[str, str]) -> Mapping[str, str]:
        """Return its labels."""
        return claimed if self.identity is None else self.identity.labels_with(claimed)

    def rotate(
        self, wish: Rotate, send: Callable[[bytes], None], nursery: trio.Nursery | None
    ) -> None:
        """The agent wants another secret: one at a time, and no answer if it cannot be stored."""
        identity = self.identity
        if identity is None or nursery is None or self._is_rotating:
            log.warning("no secret is replaced on this link", agent=self.agent_id)
            return

        async def rotate() -> None:
            try:
                new, old = bytes.fromhex(wish.sha256), bytes.fromhex(wish.replaces)
                if await identity.rotate(new, old):
                    send(render_extension(Rotated(wish.sha256)))
            except ConfigurationError as error:
                log.error("an agent's new secret was not stored", reason=str(error))
            finally:
                self._is_rotating = False

        self._is_rotating = True
        nursery.start_soon(rotate, name="credential rotation")
