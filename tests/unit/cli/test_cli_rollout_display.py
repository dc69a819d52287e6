"""Rollouts on terminals of any size, and bars."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paddler_trio.cli.fleet.fleet_client import InstanceView, RolloutView
from paddler_trio.cli.fleet.rollout_display import rollout_display, rollouts_shown


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


DOWNLOAD = {
    "phase": "downloading",
    "source": "hub.example",
    "filename": "m-00002-of-00003.gguf",
    "file_index": 2,
    "file_count": 3,
    "current_bytes": 1_500_000_000,
    "total_bytes": 4_700_000_000,
    "bytes_per_s": 100_000_000,
    "remaining_s": 32,
}


def downloads() -> RolloutView:
    waits = {**DOWNLOAD, "phase": "waiting for another process"}
    agents = [
        InstanceView(agent="a1", phase="prefetching", progress=0.3, download=dict(DOWNLOAD)),
        InstanceView(agent="a2", phase="prefetching", progress=0.3, download=waits),
        InstanceView(agent="a3", phase="prefetching", download={**DOWNLOAD, "total_bytes": None}),
    ]
    return RolloutView(deployment="default", phase="prefetching", to=2, agents=agents)


def test_a_download_shows_its_bytes_its_speed_and_how_long_it_takes() -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    with console.capture() as capture:
        console.print(rollouts_shown([downloads()], 24))
    _, first, second, third = capture.get().splitlines()
    assert "━" in first
    assert "1.5 GB of 4.7 GB, 100.0 MB/s, 0:32 left, file 2 of 3" in first
    assert second.rstrip().endswith("file 2 of 3, waiting for another process")
    assert "1.5 GB, 100.0 MB/s" in third
    narrow = Console(file=io.StringIO(), width=60, force_terminal=False)
    with narrow.capture() as capture:
        narrow.print(rollouts_shown([downloads()], 24))
    assert all(len(line) <= 60 for line in capture.get().splitlines())
    assert "━" in capture.get()


def test_elsewhere_each_file_is_a_line() -> None:
    file = io.StringIO()
    console = Console(file=file, width=10_000, force_terminal=False)
    with rollout_display(console) as display:
        display.show([downloads()])
        display.show([downloads()])
    name, waits = "m-00002-of-00003.gguf", "waiting for another process"
    assert file.getvalue().splitlines()[1:] == [
        f"default, a1: prefetching {name} (4.7 GB) from hub.example, file 2 of 3",
        f"default, a2: prefetching {name} (4.7 GB) from hub.example, file 2 of 3, {waits}",
        f"default, a3: prefetching {name} from hub.example, file 2 of 3",
    ]


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
