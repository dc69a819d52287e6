"""The limits of API keys: counted in front of the ports, charged where requests end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.apis.api_router import ApiRouter
from paddler_trio.balancer.apis.limit_headers import api_limit_headers
from paddler_trio.balancer.fleet.state_database import state_file
from paddler_trio.balancer.keys.key_accounts import KeyAccounts
from paddler_trio.balancer.keys.key_limiter import KeyLimiter
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_tokens import KeyTokens
from paddler_trio.balancer.keys.key_usage_file import SUFFIX, KeyUsageFile
from paddler_trio.net.server.exchange import App
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.state_owner import Run
from paddler_trio.system.settings.balancer_config import BalancerConfig


@attrs.frozen(eq=False)
class KeyQuotas:
    """``observers`` charge what requests used; ``services`` are its tasks, by their names; ``file``
    keeps what was used, if it is kept."""

    accounts: KeyAccounts
    limiter: KeyLimiter
    observers: Sequence[DispatchObserver]
    services: Mapping[str, Run]
    file: KeyUsageFile | None = None

    @classmethod
    def of(cls, config: BalancerConfig, keys: KeyRing, finished: FinishedRequests) -> KeyQuotas:
        """Read what was used today from the file beside the state.

        Args:
          finished: the records of requests that ended.
        """
        accounts = KeyAccounts(keys)
        services: dict[str, Run] = {}
        observers = () if keys.path is None else (KeyTokens(accounts, finished),)
        file, state = None, state_file(config.state_database)
        if state is not None and keys.path is not None:
            file = KeyUsageFile(state.with_name(state.name + SUFFIX), accounts)
            file.load()
            services["key usage"] = file.run
        return cls(accounts, KeyLimiter(accounts), observers, services, file)

    @property
    def problem(self) -> str:
        """Why what keys have used is not kept; empty if it is."""
        return "" if self.file is None else self.file.problem or ""

    def limited(self, api: ApiRouter) -> App:
        """Return the application of the APIs, within limits, with the headers of each API."""
        return self.limiter(api, refuse=api.refuse, fields=api_limit_headers)
