"""The help of an agent in front of a server says the default that is used."""

from __future__ import annotations

from daemon_configs import config_of

from cli_in_process import COMMAND
from paddler_trio.cli.daemons.settings_file import daemon_of, settings_of
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM


def test_the_deployment_that_the_help_names_is_the_one_that_is_used() -> None:
    setting = settings_of(daemon_of(COMMAND, "agent"))["deployment"]
    assert setting.option.show_default == DEFAULT_UPSTREAM
    config = config_of(
        *("agent", "--management-addr", "127.0.0.1:1", "--upstream", "http://127.0.0.1:8080")
    )
    assert isinstance(config, AgentConfig)
    assert config.upstream is not None
    assert config.upstream.deployment == DEFAULT_UPSTREAM
