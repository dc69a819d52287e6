"""Rollouts on terminals of any size, and bars."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paddler_trio.cli.fleet_views import InstanceView, RolloutView
from paddler_trio.cli.rollout_display import rollout_display, rollouts_shown


def large(agents: int, deployment: str = "default") -> RolloutView:
    phases = ["waiting", "serving", "loading", "failed"]
    shown = [
        InstanceView(
            agent=f"a{i:03}",
            phase=phases[i % 4],
            progress=0.25 if i % 4 == 2 else None,
            detail="out of memory " * 20 if i % 4 == 3 else None,
        )
        for i in range(agents)
    ]
    return RolloutView(deployment=deployment, phase="rolling", before=1, to=2, agents=shown)


@pytest.mark.parametrize(("height", "width"), [(10, 60), (24, 80), (50, 200)])
@pytest.mark.parametrize("deployments", [1, 3])
def test_a_large_fleet_fits_the_terminal_and_failures_come_first(
    height: int, width: int, deployments: int
) -> None:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    rollouts = [large(500, f"d{i}") for i in range(deployments)]
    with console.capture() as capture:
        console.print(rollouts_shown(rollouts, height))
    lines = capture.get().splitlines()
    assert len(lines) <= max(height, deployments * 5)
    assert "failed" in lines[1]
    assert "125 waiting" in lines[-1]


def test_a_small_fleet_is_listed_by_name_with_bars() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(rollouts_shown([large(4)], 24))
    head, *rows = capture.get().splitlines()
    assert head == "default: rolling, revision 1 -> 2"
    assert [row.split()[0] for row in rows] == ["a000", "a001", "a002", "a003"]
    assert "━" in rows[2]
    assert all(len(row) <= 80 for row in rows)


def test_what_agents_write_cannot_steer_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, width=10_000, force_terminal=False)
    bad = RolloutView(
        deployment="default",
        phase="rolling\x1b[2J",
        reason="\x1b]0;owned\x07",
        agents=[InstanceView(agent="\x1b[1mx", phase="failed", detail="\x9b31m")],
    )
    with rollout_display(console) as display:
        display.show([bad])
        display.show([bad])
        display.tell("\x1b[31m")
    console.print(rollouts_shown([bad]))
    assert not {"\x1b", "\x07", "\x9b"} & set(file.getvalue())
    assert file.getvalue().count("rolling") == 2, "once as lines, once as a table"
