"""``/api/v2/store`` on the management port: every request there is passed on to the model store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import attrs
import trio

from paddler_trio.balancer.fleet.model_store_child import ModelStoreChild, NotPassedError
from paddler_trio.balancer.keys.audit_trail import NOT_FOUND, outcome_of
from paddler_trio.errors import WireError
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.net.server.asgi import (
    ClientGoneError,
    HttpProblem,
    send_text,
)
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.processes.model_store.store_messages import PREFIX, PassedRequest, RequestEnded
from paddler_trio.processes.model_store.store_reach import is_file_of
from paddler_trio.wire.paddler.desired_state import DesiredModel

RETRY_AFTER_S: Final = 1
_ACTIONS: Final = {
    ("PUT", "pins"): "store model pinned",
    ("DELETE", "pins"): "store model unpinned",
    ("DELETE", "files"): "store file removed",
    ("POST", "prune"): "store pruned",
    ("PUT", "manifests"): "model sent to the store",  # what makes files a model
}
"""What leaves a record in the audit log, by method and the first word of the path."""


@attrs.frozen(eq=False)
class ModelStoreRoutes:
    """An application for the paths of the store, whatever the method.

    Args:
      readable: the models whose files the credential of an agent opens: what is desired of its
        deployments, and what operators tell agents to fetch or to judge.
    """

    child: ModelStoreChild
    readable: Callable[[AgentIdentity], Iterable[DesiredModel]]

    async def __call__(self, exchange: Exchange) -> None:
        """Pass the connection on, or answer why not."""
        try:
            await self._pass_on(exchange)
        except HttpProblem as problem:
            await send_text(exchange.send, problem.status, problem.text, headers=problem.headers)

    async def _pass_on(self, exchange: Exchange) -> None:
        agent = exchange.identity.agent
        raw_path = exchange.scope["raw_path"].decode("latin-1")
        if agent is not None:
            await self._check_reach(agent, raw_path)
        connection = exchange.passable
        assert connection is not None, "the server passes on what is_store_path holds for"
        request = PassedRequest(
            id=0,
            method=exchange.method,
            path=exchange.path,
            raw_path=raw_path,
            query=exchange.query.decode("latin-1"),
            headers=tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in exchange.headers
                if name not in {b"authorization", b"x-api-key", b"cookie"}
            ),
            client=exchange.client[0],
            unread=connection.unread(),
            is_agents=agent is not None,
        )
        descriptor = connection.fileno()
        if descriptor < 0:
            raise ClientGoneError("the client left before its request was passed on")
        try:
            await self.child.pass_on(request, descriptor, partial(_record, exchange))
        except NotPassedError as error:
            retry_after = (b"retry-after", b"%d" % RETRY_AFTER_S)
            raise HttpProblem(503, str(error), [retry_after]) from error
        except WireError as error:
            raise HttpProblem(431, f"the request is too long: {error}") from error
        connection.release()

    async def _check_reach(self, agent: AgentIdentity, raw_path: str) -> None:
        """Raise HttpProblem 403 unless it is a file that the agent may have to load."""
        models = tuple(self.readable(agent))
        if not await trio.to_thread.run_sync(is_file_of, self.child.layout, models, raw_path):
            raise HttpProblem(
                403,
                f"the credential of the agent {agent.name!r} opens files of the models that its "
                "deployments name, or that an operator has agents fetch; this is none",
            )


def _record(exchange: Exchange, ended: RequestEnded) -> None:
    """Leave a record of what the store did for a request; of questions and of uploads, none."""
    action = _ACTIONS.get((exchange.method, _first_word(exchange.path)))
    if action is None or ended.status == NOT_FOUND or (ended.status == 200 and not ended.changed):
        return
    outcome = outcome_of(ended.status or None)
    exchange.audit.record(exchange, action, ended.changed, outcome=outcome)


def _first_word(path: str) -> str:
    return path.removeprefix(f"{PREFIX}/").partition("/")[0]
