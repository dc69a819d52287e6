"""Requests forwarded to the servers of one deployment, in a slot of one or beside them.

A request that a model works on waits for a slot like any other, in the same fair queue, with the
same limits. If its server fails before anything of the answer has come, it goes back into the
queue, and another one gets it; afterwards it ends with the reason. What takes no slot goes to the
server that is least busy, and waits only while there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs
import trio

from paddler_trio.balancer.agents.retry_advice import retry_advice, retry_later
from paddler_trio.balancer.reverse_proxy.answer_writer import AnswerWriter, error_body
from paddler_trio.balancer.reverse_proxy.forwarded_head import AGENT_FIELD, request_headers
from paddler_trio.balancer.reverse_proxy.server_pools import (
    PrefixAffinity,
    cached_tokens,
    forwarded_client,
    forwarded_user,
    home_of_slot,
    least_busy,
    named,
    preferred,
)
from paddler_trio.balancer.reverse_proxy.slot_paths import SlotHolders, slot_of, takes_slot
from paddler_trio.balancer.reverse_proxy.tunnel_exchange import ForwardedRequest, exchange_with
from paddler_trio.net.server.asgi import (
    ClientGoneError,
    Header,
    HttpProblem,
    read_body,
    send_bytes,
)
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.streaming import cut_on_disconnect
from paddler_trio.nursery_tree.agent_connection import AgentConnection
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.forwarded_work import ForwardedWork
from paddler_trio.nursery_tree.pool import Pool
from paddler_trio.nursery_tree.request import Request, RevisionPin
from paddler_trio.nursery_tree.request_endings import (
    DISPLACED,
    MOVED,
    OVERFLOW,
    SHUTTING_DOWN,
    Completed,
    Failure,
    silent_server,
)
from paddler_trio.telemetry.trace_context import trace_of
from paddler_trio.wire.trio.tunnel_frames import Failed, RequestHead, may_be_repeated

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
BODY_DEADLINE_S: Final = 120.0
NO_SERVER: Final = Failure(503, "No server is connected that answers now")
OVERFLOWS: Final = (OVERFLOW, DISPLACED)
OUR_REFUSALS: Final = {"request": 400, "unable": 501, "full": 503}
"""Statuses of failures that no server is to blame for."""
NOT_SENT: Final = frozenset({"connect", *OUR_REFUSALS})
"""Kinds of failures of requests that no server has seen."""
BLAMELESS: Final = frozenset({"connect", "link"})
"""Kinds of failures that no request is the cause of."""
MAX_TRIES_BESIDE: Final = 3
"""Servers that are asked for what takes no slot, one after the other."""
MAX_BROKEN_BESIDE: Final = 2
"""Of these, those that took the request and broke: it is the likely cause."""


@attrs.frozen(eq=False, kw_only=True)
class Forwarding:
    """See the module docstring.

    Args:
      response_timeout_s: see ``ForwardedWork``; also for what takes no slot.
      rewrites_host: servers are shown their own address as ``Host``.
      needs_keys: the keys that clients show are for this balancer; otherwise for the servers.
      overflow_status: of the refusals because too many wait already.
    """

    dispatcher: Dispatcher
    response_timeout_s: float = 600.0
    rewrites_host: bool = False
    needs_keys: Callable[[], bool] = lambda: False
    affinity: PrefixAffinity = attrs.field(factory=PrefixAffinity)
    sockets: SlotHolders = attrs.field(factory=SlotHolders)
    overflow_status: int = 503

    async def forward(
        self,
        exchange: Exchange,
        pool: Pool,
        body: bytes | bytearray | None = None,
    ) -> None:
        """Answer one request with what a server of ``pool`` answers.

        Args:
          body: of the request, if it was read already.

        Errors:
          HttpProblem: the request is refused; nothing was sent.
          ClientGoneError: the client left.
        """
        raw = exchange.raw_response
        assert raw is not None, "the server of this balancer writes raw responses"
        if body is None:
            body = await read_body(
                exchange.receive, limit_bytes=MAX_BODY_BYTES, deadline_s=BODY_DEADLINE_S
            )
        answer = AnswerWriter(exchange, raw)
        head = self._head(exchange, body)
        request = ForwardedRequest(head=head, body=body, upgrade=exchange.upgrade)
        server = self._wanted_server(exchange, pool, body)
        problem: Failure | None
        upgrades = exchange.upgrade is not None
        if takes_slot(exchange.method, exchange.path, upgrades=upgrades):
            user = await forwarded_user(exchange, body)
            problem = await self._in_slot(exchange, user, pool, request, answer, server)
        else:
            problem = await self._beside(exchange, pool, request, answer, server)
        if answer.is_whole:
            await answer.close()
            return
        if problem is None:
            return  # the client left
        if answer.has_begun:
            with suppress(ClientGoneError):
                await answer.break_off(problem.code, problem.description)
            return  # without its end: the connection is cut
        status = self.overflow_status if problem in OVERFLOWS else problem.code
        await send_bytes(
            exchange.send,
            status,
            error_body(status, problem.description),
            content_type=b"application/json",
            headers=self._advice(problem, pool),
        )

    # ------------------------------------------------------------ in a slot

    async def _in_slot(
        self,
        exchange: Exchange,
        user: str,
        pool: Pool,
        forwarded: ForwardedRequest,
        answer: AnswerWriter,
        server: AgentConnection | None,
    ) -> Failure | None:
        work = ForwardedWork(self.response_timeout_s)
        client, priority = forwarded_client(exchange)
        home = None
        if server is None:
            home = preferred(pool.agents.values(), self.affinity.home(forwarded.body))
        wanted = server or home
        request = self.dispatcher.submit(
            exchange.request_id,
            work,
            client=client,
            priority=priority,
            deployment=pool.name,
            pin=None if wanted is None else RevisionPin(wanted.revision),
            route=exchange.path,
            trace=trace_of(exchange),
            user=user,
            account=exchange.identity.account,
        )
        if home is not None:
            request.pin = None  # it has its slot; another may take it over if that one is lost
        watch = exchange.client_watch
        watch.on_end = request.stop  # which cuts the exchange, if one is under way
        try:
            if watch.has_ended:
                request.stop()
            while not await self._held_slot(request, work, forwarded, answer, pool):
                pass
        finally:
            watch.on_end = None
            request.stop()
            if request.lease is not None and request.lease.wire_id != work.sent_as:
                request.lease.confirm_stop()  # the agent does not know of it, and says nothing
        return request.failure

    async def _held_slot(
        self,
        request: Request,
        work: ForwardedWork,
        forwarded: ForwardedRequest,
        answer: AnswerWriter,
        pool: Pool,
    ) -> bool:
        """Stay in a slot once; True when the request is over."""
        await self.sockets.turn(request, answer.exchange, pool.name)
        lease = request.lease
        if lease is None or request.is_over:
            return True
        failed: Failed | None = None
        with (
            trio.CancelScope() as scope,
            self.sockets.held(request, answer.exchange, pool.name) as heard,
        ):
            work.begin(lease.wire_id, scope.cancel)
            failed = await exchange_with(
                lease.agent, forwarded, lease.wire_id, answer, heard, work.sent
            )
        work.finish()
        if scope.cancelled_caught or (failed is not None and scope.cancel_called):
            return request.is_over  # the slot was lost, or the request was stopped
        if failed is None:
            request.answered_with = answer.status
            request.end(Completed())
            tokens = cached_tokens(answer.tail)
            self.affinity.answered(forwarded.body, lease.agent.id, tokens)
        elif failed.may_repeat:
            self.dispatcher.suspend(lease.agent)  # or it would get this request again at once
            # whatever the server worked on may have broken it
            suspects = 0 if failed.kind in BLAMELESS else lease.agent.slots_processing
            self.dispatcher.hand_back(lease, failed.text, suspects=suspects)
        else:
            request.end(_failure(failed))
        return request.is_over

    # -------------------------------------------------------- beside slots

    async def _beside(
        self,
        exchange: Exchange,
        pool: Pool,
        forwarded: ForwardedRequest,
        answer: AnswerWriter,
        server: AgentConnection | None,
    ) -> Failure | None:
        head = forwarded.head
        problem: Failure | None = None
        num_broken = 0
        broke: set[AgentConnection] = set()
        unfit: set[AgentConnection] = set()
        with cut_on_disconnect(exchange):
            for _ in range(MAX_TRIES_BESIDE):
                agent = server or await self._server_beside(pool, unfit, broke)
                if agent is None:
                    problem = problem or self._nobody(pool)
                    break
                failed = await self._patient_exchange(agent, forwarded, answer)
                problem = None if failed is None else _failure(failed)
                if failed is None or not failed.may_repeat:
                    break
                if failed.kind in BLAMELESS:
                    self.dispatcher.suspend(agent)
                if failed.kind not in NOT_SENT and not may_be_repeated(head.method, head.target):
                    break  # a server may have done what it asks for
                if failed.kind in BLAMELESS:
                    continue
                if failed.kind not in OUR_REFUSALS:
                    # perhaps on a page that nobody else asks for: the others keep the server
                    num_broken += 1
                    if num_broken >= MAX_BROKEN_BESIDE:
                        break
                    broke.add(agent)
                elif server is None:
                    unfit.add(agent)
                else:
                    break
        return problem

    async def _patient_exchange(
        self, agent: AgentConnection, forwarded: ForwardedRequest, answer: AnswerWriter
    ) -> Failed | None:
        """Exchange as long as something comes: no slot that is lost ends this one, and its agent,
        which watches the server, may be the one that is silent."""
        timeout_s = self.response_timeout_s
        with trio.move_on_after(timeout_s) as patience:

            def progressed() -> None:
                patience.deadline = trio.current_time() + timeout_s

            return await exchange_with(agent, forwarded, "", answer, progressed)
        silence = silent_server(timeout_s).description
        return Failed(kind="timeout", text=silence, may_repeat=False)

    async def _server_beside(
        self, pool: Pool, unfit: set[AgentConnection], broke: set[AgentConnection]
    ) -> AgentConnection | None:
        """Return one that is not ``unfit``, and did not break on the request if one did not."""
        if unfit or broke:
            fit = set(pool.agents.values()) - unfit
            agent = least_busy(fit - broke)
            if agent is not None or unfit:
                return agent or least_busy(fit)
        return await self._ready_server(pool)

    async def _ready_server(self, pool: Pool) -> AgentConnection | None:
        """Return the least busy one, no later than a request would wait for a slot."""
        agent = least_busy(pool.agents.values())
        if agent is not None or self.dispatcher.is_draining or pool.has_moved:
            return agent
        changes = self.dispatcher.agents_changed
        with (
            self.dispatcher.pools.asking(pool),
            trio.move_on_after(self.dispatcher.limits.buffered_timeout_s),
        ):
            while agent is None and not (self.dispatcher.is_draining or pool.has_moved):
                await changes.wait_beyond(changes.ordinal)
                agent = least_busy(pool.agents.values())
        return agent

    def _nobody(self, pool: Pool) -> Failure:
        """Why no server answers what takes no slot."""
        if self.dispatcher.is_draining:
            return SHUTTING_DOWN
        return MOVED if pool.has_moved else NO_SERVER

    # -------------------------------------------------------------- private

    def _head(self, exchange: Exchange, body: bytes | bytearray) -> RequestHead:
        written = exchange.written
        client = exchange.peer or exchange.client[0]  # those before it are in the field already
        framed = (b"content-length", b"transfer-encoding")
        has_body = any(exchange.header(name) is not None for name in framed)
        names = written.names
        if self.rewrites_host:  # agents of before look for it in small letters
            names = [b"host" if each.lower() == b"host" else each for each in names]
        return RequestHead(
            id="",
            method=written.method,
            target=written.target,
            headers=request_headers(
                exchange.headers,
                names,
                client=client,
                scheme=exchange.scope["scheme"],
                body_bytes=len(body) if has_body else None,
                keeps_keys=not self.needs_keys(),
                upgrades=exchange.upgrade is not None,
            ),
            has_body=has_body,
            rewrites_host=self.rewrites_host,
        )

    def _wanted_server(
        self, exchange: Exchange, pool: Pool, body: bytes | bytearray
    ) -> AgentConnection | None:
        """Return the only one that may answer, None if any may; HttpProblem 503."""
        agents = pool.agents.values()
        asked = exchange.header(AGENT_FIELD)
        if asked is not None:
            name = asked.decode("latin-1")
            if (agent := named(agents, name)) is not None:
                return agent
            here = ", ".join(each.label for each in agents) or "none"
            words = f"X-Paddler-Agent: no agent {name[:80]!r} is connected here; there is: {here}"
            raise HttpProblem(503, words, retry_later(self.dispatcher.pools, pool.name))
        slot = slot_of(exchange.path, body)
        if slot is None:
            return None
        client, _ = forwarded_client(exchange)
        return home_of_slot(agents, client, slot)

    def _advice(self, problem: Failure, pool: Pool) -> list[Header]:
        return retry_advice(self.dispatcher.pools, problem, pool.name)


def _failure(failed: Failed) -> Failure:
    """Return what the client is told. Its agent judges by itself whether a server is to be left
    alone."""
    if failed.kind in OUR_REFUSALS:
        return Failure(OUR_REFUSALS[failed.kind], failed.text)
    return Failure(504 if failed.kind == "timeout" else 502, failed.text)
