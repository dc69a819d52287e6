"""Choose which servers a request is for: those of one deployment, by the model that it names."""

from __future__ import annotations

import attrs

from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import HttpProblem
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.json_body import decoded, input_of
from paddler_trio.nursery_tree.dispatcher import Dispatcher
from paddler_trio.nursery_tree.pool import Pool

MAX_READ_BYTES = 64 * 1024 * 1024


@attrs.frozen(eq=False)
class ServerPools:
    """The pools of servers by the names that requests may use."""

    dispatcher: Dispatcher

    def all(self) -> list[Pool]:
        return self.dispatcher.pools.upstreams()

    def called(self, model: str) -> Pool | None:
        """Return the one whose deployment has this name, else one of whose servers says that it
        serves a model of this name; those that are ready come first."""
        pools = self.all()
        for pool in pools:
            if pool.name == model:
                return pool
        serving = [
            (agent.is_accepting, pool)
            for pool in pools
            for agent in pool.agents.values()
            if agent.upstream is not None and model in agent.upstream.models
        ]
        return max(serving, key=lambda each: each[0])[1] if serving else None

    def any_of(self) -> Pool | None:
        """Return servers for a request that names no model of theirs: one that has agents, if one
        has; None only if there are no servers at all."""
        pools = self.all()
        return max(pools, key=lambda pool: bool(pool.agents), default=None)

    def any_with_servers(self) -> Pool | None:
        """Return the servers of :meth:`any_of`; None while no server is there."""
        return next((pool for pool in self.all() if pool.agents), None)


async def model_in(exchange: Exchange, body: bytes | bytearray) -> str | None:
    """Return the model that a JSON body names; None if it names none, or is no JSON: the server
    that gets it says what is wrong with it.

    Errors:
      HttpProblem: 413 or 503, there is no room to look: another model must not answer for that.
    """
    if exchange.header(b"content-encoding") is None and b'"model"' not in body:
        return None
    room = input_of(exchange)
    before = room.used_bytes
    try:
        whole = body if isinstance(body, bytearray) else bytearray(body)  # read only, not copied
        return await decoded(exchange, whole, _model, limit_bytes=MAX_READ_BYTES)
    except HttpProblem as problem:
        if problem.status in (413, 503):
            raise
        return None
    except WireError:
        return None
    finally:
        room.shrink(room.used_bytes - before)  # nothing of the value is kept


def _model(value: object) -> str | None:
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None


def must_allow(exchange: Exchange, pool: Pool) -> None:
    """Raise HttpProblem 403 for a key that may not use these servers."""
    allowed = exchange.identity.deployments
    if allowed is not None and pool.name not in allowed:
        names = " and ".join(sorted(allowed))
        raise HttpProblem(
            403, f"this API key is for the deployments {names}, and this is answered by {pool.name}"
        )
