"""Real daemons take their settings from a file, from variables and from flags."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fleet import Daemon, Fleet

FILE = """
[balancer]
inference-addr = "127.0.0.1:0"
management-addr = "192.0.2.1:1"      # no address of this machine: the variable counts before it
log-json = true

[agent]
management-addr = "192.0.2.1:1"      # the flag counts before it
slots = 3
name = "from-the-file"
label = ["gpu=yes", "rack=7"]
fit = "off"
log-json = true
"""


def test_daemons_start_from_a_file_with_variables_and_flags_over_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(FILE)
    environment = {
        "PADDLER_CACHE_DIR": str(tmp_path),
        "PADDLER_TRIO_CONFIG": str(file),
        "PADDLER_TRIO_SLOT": "a-text-that-may-be-a-secret",
    }
    with contextlib.ExitStack() as started:
        balancer = Daemon.start(
            "balancer",
            ["balancer"],
            {**environment, "PADDLER_TRIO_BALANCER_MANAGEMENT_ADDR": "127.0.0.1:0"},
        )
        started.callback(balancer.end)
        unknown = balancer.wait_for_log("nothing reads these environment variables")
        assert unknown["level"] == "warning"
        assert unknown["variables"] == ["PADDLER_TRIO_SLOT; PADDLER_TRIO_SLOTS may be meant"]
        up = balancer.wait_for_log("balancer up")
        inference, management = (_first(up[service]) for service in ("inference", "management"))
        agent = Daemon.start(
            "agent",
            ["agent", f"--management-addr={management}"],
            {**environment, "PADDLER_TRIO_NAME": "from-the-variable"},
        )
        started.callback(agent.end)
        fleet = Fleet(balancer, inference, management, environment, [balancer, agent], ["balancer"])
        (seen,) = fleet.wait_until(
            lambda view: bool(view["agents"]), what="the agent is there", nobody_ends=True
        )["agents"]
        assert seen["name"] == "from-the-variable"
        assert seen["desired_slots_total"] == 3
        assert "a-text-that-may-be-a-secret" not in balancer.tail(5000) + agent.tail(5000)


def _first(addresses: object) -> str:
    assert isinstance(addresses, list)
    return str(addresses[0])
