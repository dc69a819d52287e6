"""What a daemon's command makes of its command line: the configuration it would run with."""

from __future__ import annotations

import inspect

import pytest

from cli_in_process import invoke
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.system.settings.balancer_config import BalancerConfig


def config_of(*words: str) -> BalancerConfig | AgentConfig:
    """Everything of the command runs but the daemon itself; AssertionError if it is refused."""
    found: list[BalancerConfig | AgentConfig] = []

    def keep_config(body: object, **_: object) -> None:
        assert inspect.isfunction(body)
        config = inspect.getclosurevars(body).nonlocals["config"]
        assert isinstance(config, BalancerConfig | AgentConfig)
        found.append(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paddler_trio.cli.daemons.daemons.run_daemon", keep_config)
        ended = invoke(*words)
    assert found, ended.stderr
    return found[0]
