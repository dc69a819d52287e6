"""The agent's link to its balancer: one connection after the other, for the life of the agent.

When a connection ends, its requests are stopped; the model stays loaded. Redialling backs off with
jitter (``balancer_link.py``), so that not all agents dial a restarted balancer in the same instant.

A balancer that leaves, because another process takes over at its address, keeps its connection
until it has no request left; the agent dials again at once, and reaches the other process.

Decide when an agent that has no link to its balancer dials again.

The pause doubles with each attempt that led to no link, up to ``LONGEST_PAUSE_S``; between a
quarter of it and all of it is waited. So a balancer that is back is dialled by every agent within
``LONGEST_PAUSE_S``, and by agents that lost it together not in one moment: after two seconds a
third of them at most dial in the same half second, after five a fifth.

Only a link that lasted makes the pause short again: a balancer that accepts connections and does
not answer them is dialled ever more rarely, too.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

import attrs
import h11
import structlog
import trio
import trio_websocket
import wsproto.utilities

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_connection import BalancerConnection, closed_reason
from paddler_trio.agent.link.balancer_dial import dial
from paddler_trio.agent.link.credential_rotation import CredentialRotation
from paddler_trio.agent.link.link_reply import DialledStream, LinkModels, LinkRequests
from paddler_trio.agent.model.slot_shares import SlotShare, SlotShares
from paddler_trio.agent.model.store_first import StoreAddress
from paddler_trio.errors import ConfigurationError, LinkError, leaves
from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.net.tls.address import BalancerAddress
from paddler_trio.net.tls.client_errors import tls_error_in, tls_problem
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls
from paddler_trio.system.durable import read_secret
from paddler_trio.system.synchronization import Future
from paddler_trio.wire.trio.operations.machine_facts import MachineFacts
from paddler_trio.wire.trio.operations.operator_orders import ORDERS
from paddler_trio.wire.trio.prompt_stages import FEATURE, FEATURES_HEADER
from paddler_trio.wire.trio.trio_link import (
    BESIDE,
    BOUND,
    CONTEXT,
    FOLLOWS,
    INFILL,
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    InstanceWanted,
    Placement,
)
from paddler_trio.wire.trio.upstream_messages import Upstream

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
"""A fleet is back within ten seconds of its balancer: two are left to register."""
LEAST_SHARE = 0.25
"""The part of a pause which is waited at least."""
LASTING_S = 10.0
"""A link that was up for so long did not end because of what it was dialled with."""


@attrs.define
class Redial:
    """The pauses of one link; pure, the caller knows clock and chance."""

    _failures: int = attrs.field(default=0, init=False)

    def pause_s(self, linked_s: float, chance: float) -> float:
        """Return how long to wait after an attempt that has ended.

        Args:
          linked_s: for how long it was registered with the balancer; 0 if it never was.
          chance: uniform in 0..1.
        """
        if linked_s >= LASTING_S:
            self._failures = 0
        doublings = math.log2(LONGEST_PAUSE_S / FIRST_PAUSE_S)
        bound_s = FIRST_PAUSE_S * 2 ** min(self._failures, doublings)
        self._failures += 1
        return bound_s * (LEAST_SHARE + (1 - LEAST_SHARE) * chance)

    def begin_anew(self) -> None:
        """Note that the next attempt is the first one: the balancer itself asked for it."""
        self._failures = 0


bound_parsing()

log = structlog.get_logger("link")

CONNECT_S = 10.0
CLOSE_S = 1.0
CUT_S = 0.05
"""The time to say that it closes, when cancelled: so is the task that would read the answer."""
READ_AHEAD_FRAMES = 64
ID_BYTES: Final = 11
"""Enough that no two are ever the same; no id is a secret."""


def new_agent_id() -> str:
    """Return 22 hexadecimal digits, new for each start: no option of a command line begins so, and
    no secret looks like it."""
    return secrets.token_hex(ID_BYTES)


@attrs.define(eq=False)
class BalancerLink:
    """Stays connected to one balancer for the life of the agent.

    Args:
      address: of the balancer's management service.
      tls: how it is verified, if the address is one with TLS.
      token_file: holds the API key to show; read at every dialling, so a new one needs no restart.
      id: this instance's id, the same across reconnects of one process.
      placement: what is sent before each registration; None sends nothing.
      offer, machine: see :class:`BalancerConnection`.
      on_instances: called with the list of instances that this host shall have beside this one;
        None where that is not to be heard.
      rotation: of the credential in ``token_file``, if it is one and this link shall do that.
    """

    address: BalancerAddress
    name: str | None
    status: AgentStatus
    models: LinkModels
    requests: LinkRequests
    token_file: Path | None = None
    id: str = attrs.field(factory=new_agent_id)
    placement: Callable[[], Placement | None] = lambda: None
    offer: Callable[[], Upstream | None] = lambda: None
    machine: Callable[[], MachineFacts | None] = lambda: None
    on_instances: Callable[[Sequence[InstanceWanted]], None] | None = None
    rotation: CredentialRotation | None = None
    tls: ClientTls = SYSTEM_TRUST
    registered: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set at the first successful registration."""
    is_up: bool = attrs.field(default=False, init=False)
    """Registered with the balancer now."""
    num_connections: int = attrs.field(default=0, init=False)
    """The number of times that it was registered."""
    _connections: list[BalancerConnection] = attrs.field(factory=list, init=False)
    """The oldest first; of all but the newest the balancer leaves."""
    _linked_at_s: float | None = attrs.field(default=None, init=False)
    """The time at which the newest connection was registered."""
    _shares: SlotShares = attrs.field(init=False)
    _leaving: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._shares = SlotShares(self.status)

    def _features(self) -> tuple[bytes, ...]:
        beside = (BESIDE,) if self.models.judges_beside else ()
        return (FEATURE, FOLLOWS, BOUND, INFILL, CONTEXT, ORDERS, *beside)

    def __repr__(self) -> str:
        states = [repr(each) for each in self._connections] or ["dialling"]
        return f"<BalancerLink {self.address} {', '.join(states)}>"

    def describe(self) -> str:
        """Return one line for the service manager's status."""
        name, status = self.name or self.id, self.status
        if not self.is_up:
            return f"agent {name} waits for the balancer at {self.address}"
        if status.slots_total:
            return f"agent {name} serves with {status.slots_total} slots"
        return f"agent {name} is linked to the balancer: {status.phase}"

    async def run(self) -> None:
        """Dial for ever; returns only after :meth:`leave`."""
        async with trio.open_nursery() as connections:
            await self._dial_for_ever(connections)

    async def _dial_for_ever(self, connections: trio.Nursery) -> None:
        redial = Redial()
        while not self._leaving.is_set():
            self._linked_at_s = None
            over: Future[str | None] = Future()
            connections.start_soon(self._connect_once, over, name="connection to balancer")
            reason = await over.wait()
            if self._leaving.is_set():
                return
            if reason is None:
                log.info("the balancer hands over: dialling the next one", host=self.address.host)
                redial.begin_anew()
                continue
            linked_at_s = self._linked_at_s
            linked_s = 0.0 if linked_at_s is None else trio.current_time() - linked_at_s
            pause_s = redial.pause_s(linked_s, random.random())  # noqa: S311  # no secret
            log.warning(
                "no link to the balancer",
                host=self.address.host,
                port=self.address.port,
                tls=self.address.is_tls,
                reason=reason,
                again_in_s=round(pause_s, 2),
            )
            with trio.move_on_after(pause_s):
                await self._leaving.wait()

    async def leave(self) -> None:
        """Deregister and close, after what is queued was sent; see
        :meth:`BalancerConnection.deregister`."""
        self._leaving.set()
        async with trio.open_nursery() as goodbyes:
            for connection in self._connections:
                goodbyes.start_soon(connection.deregister, name="goodbye")

    async def _connect_once(self, over: Future[str | None]) -> None:
        """Run one connection, from dialling to its end.

        ``over`` is set when there shall be another one: to the reason why this one ended, or to
        None when the balancer leaves.

        The stream is ours: trio-websocket leaves it open when the balancer closes first, and
        then a balancer that shuts down waits for us.

        Any failure, of the peer or here, ends this connection only: nothing is raised.
        """
        reasons: list[str] = []
        share = self._shares.open()
        try:
            await self._dial_and_exchange(share, over, reasons)
        except* (
            OSError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
            trio_websocket.HandshakeError,
            trio_websocket.ConnectionClosed,
            h11.ProtocolError,
            wsproto.utilities.ProtocolError,
            ConfigurationError,
            LinkError,
        ) as group:
            reasons.append(self._reason(group))
        except* Exception as group:  # a bug: logged in full, and dialled again
            log.error("the link failed", exc_info=group)
            reasons.append(self._reason(group))
        finally:
            self._shares.close(share)
            over.set("; ".join(reasons))

    async def _dial_and_exchange(
        self, share: SlotShare, over: Future[str | None], reasons: list[str]
    ) -> None:
        """Connect, and exchange frames until the connection ends."""
        token = await self.authorization()
        with trio.fail_after(CONNECT_S) as timeout:
            async with (
                DialledStream(await dial(self.address, self.tls)) as stream,
                trio.open_nursery() as nursery,
            ):
                socket = await trio_websocket.wrap_client_stream(
                    nursery,
                    cast("trio.SocketStream", stream),  # any stream will do
                    self.address.authority,
                    f"/api/v1/agent_socket/{self.id}",
                    subprotocols=[SUBPROTOCOL],
                    extra_headers=[
                        (FEATURES_HEADER, b",".join(self._features())),
                        *([] if token is None else [(b"authorization", token)]),
                    ],
                    message_queue_size=READ_AHEAD_FRAMES,
                    max_message_size=MAX_FRAME_BYTES,
                )
                stream.is_agreed = True
                timeout.deadline = math.inf  # connected: from here on the heartbeat watches
                await self._exchange(socket, stream, share, over, reasons)
                nursery.cancel_scope.cancel(reason="the connection has ended")

    async def _exchange(
        self,
        socket: trio_websocket.WebSocketConnection,
        stream: DialledStream,
        share: SlotShare,
        over: Future[str | None],
        reasons: list[str],
    ) -> None:
        """Run one connection, note why it ended, then close it."""
        connection = BalancerConnection(
            socket,
            self.name,
            self.status,
            self.models,
            self.requests,
            on_store=self._on_store,
            placement=self.placement(),
            offer=self.offer,
            machine=self.machine,
            on_instances=self.on_instances,
            rotation=self.rotation,
            stream=stream,
            slots=partial(self._shares.offered, share),
            on_leaving=partial(self._on_leaving, share, over),
        )
        self._connections.append(connection)
        try:
            reasons.append(await connection.run(lambda: self._on_registered(connection)))
        finally:
            self._connections.remove(connection)
            self.is_up = any(not each.is_left for each in self._connections)
            self.requests.stop_all_of(connection.reply)
            is_cancelled = trio.current_effective_deadline() == -math.inf
            with trio.move_on_after(CUT_S if is_cancelled else CLOSE_S, shield=True):
                await socket.aclose()

    def _on_leaving(self, share: SlotShare, over: Future[str | None], slots: int) -> None:
        self._shares.leave(share, slots)
        over.set(None)

    def _on_registered(self, connection: BalancerConnection) -> None:
        self.registered.set()
        self._linked_at_s = trio.current_time()
        self.is_up = True
        self.num_connections += 1
        self.models.set_store(None)  # until this balancer announces one
        for each in self._connections:
            if each.is_left:
                each.reply.followed()
        log.info(
            "linked to the balancer",
            host=self.address.host,
            port=self.address.port,
            tls=self.address.is_tls,
            speaks_trio=connection.speaks_trio,
        )

    def _on_store(self, path: str) -> None:
        url = f"{self.address.url}{path.rstrip('/')}"
        self.models.set_store(StoreAddress(url, self.token_file, self.tls))
        log.info("the balancer has a model store", url=url)

    async def authorization(self) -> bytes | None:
        """Return the header that this agent shows; ConfigurationError if the file holds no key."""
        if self.token_file is None:
            return None
        return f"Bearer {await trio.to_thread.run_sync(read_secret, self.token_file)}".encode()

    def _reason(self, group: BaseExceptionGroup[BaseException]) -> str:
        said = (self._describe(each) for each in leaves(group))
        return "; ".join(dict.fromkeys(said))  # several tasks may have met the same end

    def _describe(self, error: BaseException) -> str:
        # TLS 1.3 refuses a client's certificate, or the lack of one, after the handshake
        problem = tls_error_in(error)
        if problem is not None:
            return tls_problem(problem, self.address)
        if isinstance(error, trio.TooSlowError):
            what = "TLS and WebSocket handshakes" if self.address.is_tls else "WebSocket handshake"
            return (
                f"no connection with {what} to {self.address} within {CONNECT_S:g} s: is this the "
                "balancer's management address, and does a firewall let this machine through?"
            )
        return _describe(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, trio_websocket.ConnectionRejected) and error.status_code in (
        400,
        401,
        403,
    ):
        # never the headers, never the token
        body = (error.body or b"").decode(errors="replace")[:300]
        body = body or "it gave no reason; is this the balancer's management address?"
        has_advice = error.status_code != 401 or "paddler-trio join" in body
        advice = "" if has_advice else "; see --token-file, or `paddler-trio join`"
        return f"the balancer refused this agent ({error.status_code}): {body}{advice}"
    if isinstance(error, trio_websocket.ConnectionClosed):
        return closed_reason(error)
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else repr(error)
