"""Decide who dials in at the management port, and what an agent's credential opens there.

    POST /api/v2/join                    open: the token in the body is looked at there
    POST below /api/v2/join/pin          open: a PIN is tried there
    /api/v1/agent_socket/…               a credential, or a management key; from the networks of
                                         --legacy-agents nothing, for agents of Paddler 4.1
    GET, HEAD below the model store      a management key; a credential, for files of the models
                                         that it may have to load (``model_store_routes``)
    GET below the tunnels                the same, and the secret of one that was asked for
    probes                               open
    everything else                      a management key; a credential is refused with 403

A credential that opens nothing is refused wherever it is shown, also where nothing is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs
import structlog
import trio

from paddler_trio.balancer.front.authentication import MAX_LOGGED_CHARS, Authentication, is_probe
from paddler_trio.balancer.joining.agent_links import REVOKED
from paddler_trio.balancer.joining.agent_registry import AgentRegistry
from paddler_trio.balancer.joining.pin_routes import PIN_PATHS
from paddler_trio.balancer.joining.stored_agents import StoredCredential
from paddler_trio.balancer.status.refused_agents import RefusedAgents
from paddler_trio.net.joining.agent_credential import AgentCredential, AgentIdentity, looks_like_one
from paddler_trio.net.networks import Network, is_within, parse_networks
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import App, Exchange, Refuse, refuse_in_plain_text
from paddler_trio.net.server.router import refuse_upgrade
from paddler_trio.wire.trio.trio_link import SUBPROTOCOL

FLAG: Final = "--legacy-agents"


def legacy_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse as :func:`parse_networks` does, with a warning for what lets everybody in."""
    found = parse_networks(texts, FLAG)
    everywhere = [str(network) for network in found if network.prefixlen == 0]
    if everywhere:
        log.warning(
            "AGENTS NEED NO KEY FROM ANYWHERE: who reaches the management port may pose as one",
            networks=everywhere,
        )
    return found


log = structlog.get_logger("joining")

JOIN_PATH: Final = "/api/v2/join"
OPEN: Final = frozenset(
    {("GET", JOIN_PATH), ("POST", JOIN_PATH), *(("POST", path) for path in PIN_PATHS)}
)
AGENT_SOCKET: Final = "/api/v1/agent_socket/"
MAX_SHOWN_BYTES: Final = 128
CLOSE_S: Final = 1.0
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="paddler-trio"')
_JOIN_ADVICE: Final = (
    "let this machine join (again): `paddler-trio join-token new` makes a token at the balancer, "
    "and `paddler-trio join` takes it here"
)


@attrs.frozen(eq=False)
class AgentGuard:
    """Wraps the application of the management port.

    Args:
      manage: asks operators for keys.
      is_agents_path: what agents may read: the model store, and tunnels of theirs.
      legacy: networks from which agents of Paddler 4.1 need nothing.
    """

    registry: AgentRegistry
    manage: Authentication
    is_agents_path: Callable[[str], bool]
    legacy: Sequence[Network] = ()
    refused: RefusedAgents = attrs.field(factory=RefusedAgents)

    @property
    def requires_key(self) -> bool:
        """Return whether operators need a key now."""
        return self.manage.requires_key

    @property
    def agents_need_key(self) -> bool:
        """Return whether those who dial in have to show something now."""
        return self.manage.requires_key or (self.registry.guards and not self.manage.is_waived)

    def __call__(self, app: App, *, refuse: Refuse = refuse_in_plain_text) -> App:
        """Return ``app`` behind keys and credentials."""
        for_operators = self.manage(self._admitting(app), refuse=refuse, on_refused=self._note)

        async def answer(exchange: Exchange) -> None:
            if exchange.is_http and (exchange.method, exchange.path) in OPEN:
                await app(exchange)
                return
            shown = None if is_probe(exchange) else _shown(exchange)
            problem: HttpProblem | None = None
            if shown is not None:
                credential, problem = self._check(exchange, shown)
                if credential is not None and problem is None:
                    self.refused.admitted(_address(exchange))
                    await self._serve(credential, app, exchange)
                    return
            elif _is_agent_socket(exchange) and self.agents_need_key:
                if self._is_legacy(exchange):
                    await app(exchange)
                    return
                if not self.manage.requires_key:
                    self.manage.keys.refusals += 1
                    problem = HttpProblem(
                        401, f"agents need a credential here: {_JOIN_ADVICE}", [_CHALLENGE]
                    )
            if problem is None:
                await for_operators(exchange)
                return
            self._note(exchange, problem)
            if exchange.is_websocket:
                await refuse_upgrade(exchange.send, problem)
            else:
                await refuse(exchange, problem)

        return answer

    def _note(self, exchange: Exchange, problem: HttpProblem) -> None:
        """Keep in mind who is refused that would be an agent."""
        if _is_agent_socket(exchange):
            self.refused.note(_address(exchange), problem.status)

    def _admitting(self, app: App) -> App:
        """Return ``app``, behind what forgets that an agent was refused."""

        async def answer(exchange: Exchange) -> None:
            if _is_agent_socket(exchange):
                self.refused.admitted(_address(exchange))
            await app(exchange)

        return answer

    def _check(
        self, exchange: Exchange, shown: bytes
    ) -> tuple[StoredCredential | None, HttpProblem | None]:
        """Return the credential, if it is one, and the refusal, if there is one."""
        address = _address(exchange)
        parsed = None
        if len(shown) <= MAX_SHOWN_BYTES:
            parsed = AgentCredential.parse(shown.decode("latin-1"))
        credential = None if parsed is None else self.registry.find(parsed, address)
        if credential is None:
            problem = HttpProblem(
                401,
                "this agent's credential is not valid here: it was revoked or replaced, was not "
                f"used for 90 days, or is another balancer's; {_JOIN_ADVICE}",
                [_CHALLENGE],
            )
        elif self._opens(exchange):
            return credential, None
        else:
            problem = HttpProblem(
                403,
                f"the credential of the agent {credential.name!r} opens the agents' socket and the "
                "model store, and nothing else: operators need an API key of the scope management",
            )
        self.manage.keys.refusals += 1
        log.warning(
            "refused: an agent's credential",
            status=problem.status,
            path=exchange.path[:MAX_LOGGED_CHARS],
            address=address,
            credential=None if parsed is None else parsed.id,
            agent=None if credential is None else credential.name,
        )
        return credential, problem

    async def _serve(self, credential: StoredCredential, app: App, exchange: Exchange) -> None:

        async def rotate(digest: bytes, replaces: bytes) -> bool:
            return await self.registry.rotate(credential.id, digest, replaces=replaces)

        exchange.identity.agent = AgentIdentity(credential.name, credential.labels, rotate)
        if exchange.is_http:
            await app(exchange)
            return
        send = exchange.send
        process = exchange.path.removeprefix(AGENT_SOCKET).partition(".")[0]
        with self.registry.link(credential.id, process, _address(exchange)) as link:
            await app(exchange)
        if link.scope.cancelled_caught:
            with trio.move_on_after(CLOSE_S, shield=True):
                await send({"type": "websocket.close", "code": 1008, "reason": REVOKED})

    def _opens(self, exchange: Exchange) -> bool:
        """Return whether a credential opens this."""
        if exchange.is_websocket:
            return _is_agent_socket(exchange)
        return exchange.method in ("GET", "HEAD") and self.is_agents_path(exchange.path)

    def _is_legacy(self, exchange: Exchange) -> bool:
        """Return whether this is an agent that can have nothing to show, and need not."""
        brings_key = any(name in (b"authorization", b"x-api-key") for name, _ in exchange.headers)
        if brings_key or SUBPROTOCOL in exchange.subprotocols:
            return False
        if not is_within(self.legacy, _address(exchange)):
            return False
        log.info(
            "an agent without a credential dials in", address=_address(exchange), allowed_by=FLAG
        )
        return True


def _is_agent_socket(exchange: Exchange) -> bool:
    return exchange.is_websocket and exchange.path.startswith(AGENT_SOCKET)


def _address(exchange: Exchange) -> str:
    """Return the client's address: of the connection, or what a trusted proxy says of it."""
    return exchange.client[0]


def _shown(exchange: Exchange) -> bytes | None:
    """Return the agent's credential that the request brings, in either header of keys."""
    scheme, _, bearer = (exchange.header(b"authorization") or b"").strip().partition(b" ")
    other = (exchange.header(b"x-api-key") or b"").strip()
    for secret in (bearer.strip() if scheme.lower() == b"bearer" else b"", other):
        if looks_like_one(secret[:8].decode("latin-1")):
            return secret
    return None
