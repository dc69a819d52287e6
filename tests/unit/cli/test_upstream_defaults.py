"""The help of an agent in front of a server says the default that is used."""

from __future__ import annotations

from cli_in_process import COMMAND
from paddler_trio.cli.daemons.settings_names import daemon_of, settings_of
from paddler_trio.cli.daemons.upstream_options import upstream_config
from paddler_trio.wire.trio.upstream_messages import DEFAULT_UPSTREAM


def test_the_deployment_that_the_help_names_is_the_one_that_is_used() -> None:
    setting = settings_of(daemon_of(COMMAND, "agent"))["deployment"]
    assert setting.option.show_default == DEFAULT_UPSTREAM
    config = upstream_config(
        url="http://127.0.0.1:8080",
        slots=None,
        key_file=None,
        ca=None,
        deployment=None,
        interval_s=None,
        stream_interval_ms=25,
        external_addr=None,
    )
    assert config is not None
    assert config.deployment == DEFAULT_UPSTREAM
