"""Values that a shell completes at Tab: what a balancer knows by name is asked of it.

Who types a command line waits for the answer and sees no errors: an answer that takes long, or that
does not come, is no values. The flags that are already typed say which balancer it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import typer

from paddler_trio.errors import PaddlerError

if TYPE_CHECKING:
    from paddler_trio.cli.management_client import ManagementClient

ANSWER_S: Final = 2.0
"""Seconds that a shell waits."""
MAX_VALUES: Final = 200


def _completed(
    ask: Callable[[ManagementClient], Iterable[str]],
) -> Callable[[typer.Context], list[str]]:
    def values(ctx: typer.Context) -> list[str]:
        from paddler_trio.cli.client_flags import ManagementFlags
        from paddler_trio.cli.flags import Given
        from paddler_trio.cli.management_client import ManagementClient

        try:
            management = Given(ManagementFlags, ctx.params).read()
            with ManagementClient.open(management, answer_s=ANSWER_S) as client:
                names = sorted({name for name in ask(client) if name.isprintable()})
        except (PaddlerError, typer.BadParameter):
            return []
        return names[:MAX_VALUES]

    return values


def _agents(client: ManagementClient) -> Iterator[str]:
    return (agent.label for agent in client.fleet().agents)


def _deployments(client: ManagementClient) -> Iterator[str]:
    from paddler_trio.cli.fleet.fleet_client import FleetClient

    return (each.name for each in FleetClient(client).state().deployments)


def _models(client: ManagementClient) -> Iterator[str]:
    """Yield what the balancer's store has, if it has one, and what agents have."""
    from paddler_trio.cli.balancer_http import BalancerRefusedError
    from paddler_trio.cli.model.cache_run import AgentResult, rows
    from paddler_trio.cli.model.store_client import STORE_PATH
    from paddler_trio.cli.model.store_rows import store_rows

    lines = client.command_caches(None, silence_s=ANSWER_S)
    yield from (row[0] for row in rows([AgentResult.of(line) for line in lines]))
    try:
        stored = client.ask("GET", STORE_PATH)
    except BalancerRefusedError:
        return
    yield from (row[0] for row in store_rows(stored))


def _requests(client: ManagementClient) -> Iterator[str]:
    from paddler_trio.cli.live.requests_run import RequestsQuery, read_requests

    return (str(each.key) for each in read_requests(client, RequestsQuery(limit=50)).requests)


def _credentials(client: ManagementClient) -> Iterator[str]:
    from paddler_trio.cli.access.join_token_run import read_credentials

    return (each.name for each in read_credentials(client).credentials)


def _tokens(client: ManagementClient) -> Iterator[str]:
    from paddler_trio.cli.access.join_token_run import read_tokens

    return (each.id for each in read_tokens(client).tokens)


agents = _completed(_agents)
deployments = _completed(_deployments)
models = _completed(_models)
requests = _completed(_requests)
credentials = _completed(_credentials)
tokens = _completed(_tokens)
