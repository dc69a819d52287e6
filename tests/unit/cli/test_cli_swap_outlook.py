"""What a change costs: bytes to fetch, time to load, the gap."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from test_cli_swap_progress import SERVING

from paddler_trio.cli.management_client import AgentView
from paddler_trio.cli.model.fit_run import FitAnswer
from paddler_trio.cli.swap.swap_outlook import (
    AgentOutlook,
    agent_outlook,
    expected_gap,
    seconds_words,
)
from paddler_trio.cli.swap.swap_rollout import instances
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)

HUB = HuggingFaceModel(repo_id="o/r", filename="m-00001-of-00002.gguf", revision="main")
URL = UrlModel("https://host/m.gguf?token=secret#sha256=00")
READY = AgentOutlook(
    agent="a1", serves_now=True, fits=True, fetch_bytes=0, load_s=20.0, beside=False
)


def answer(*devices: dict[str, int | None]) -> FitAnswer:
    return FitAnswer("a1", True, None, {"file_bytes": 1000, "devices": list(devices)})


def outlook(
    model: DesiredModel, cached: Sequence[dict[str, object]] | None, fit: FitAnswer
) -> AgentOutlook:
    return agent_outlook(SERVING, fit, models=(model, NoModel()), cached=cached)


@pytest.mark.parametrize(
    ("model", "cached", "fetch_bytes"),
    [
        (LocalToAgent("/m.gguf"), None, 0),
        (HUB, None, None),
        (HUB, [], 1000),
        (HUB, [{"source": "hf:o/r/m-00001-of-00002.gguf@abc", "state": "whole"}], 1000),
        (
            HUB,
            [
                {
                    "source": "hf:o/r/m-00001-of-00002.gguf@abc",
                    "state": "whole",
                    "revisions": ["main"],
                }
            ],
            0,
        ),
        (
            attrs.evolve(HUB, revision="abc", filename="m-00002-of-00002.gguf"),
            [{"source": "hf:o/r/m-00001-of-00002.gguf@abc", "state": "whole"}],
            0,
        ),
        (
            attrs.evolve(HUB, revision="abc"),
            [{"source": "hf:o/r/m-00001-of-00002.gguf@abc", "state": "incomplete"}],
            1000,
        ),
        (URL, [{"source": "https://host/m.gguf", "state": "whole"}], 0),
        (URL, [{"source": "https://host/n.gguf", "state": "whole"}], 1000),
    ],
)
def test_only_what_is_not_on_the_disk_is_fetched(
    model: DesiredModel, cached: list[dict[str, object]] | None, fetch_bytes: int | None
) -> None:
    assert outlook(model, cached, answer()).fetch_bytes == fetch_bytes


@pytest.mark.parametrize(
    ("device", "beside"),
    [
        ({"needed": 10, "free_now": 12, "free_after": 30, "reserve": 2, "limit": None}, True),
        ({"needed": 11, "free_now": 12, "free_after": 30, "reserve": 2, "limit": None}, False),
        ({"needed": 1, "free_now": None, "free_after": None, "reserve": 0, "limit": None}, None),
        # the old one takes 20 of the 25 that models may take
        ({"needed": 6, "free_now": 90, "free_after": 110, "reserve": 0, "limit": 25}, False),
        ({"needed": 5, "free_now": 90, "free_after": 110, "reserve": 0, "limit": 25}, True),
    ],
)
def test_both_models_must_fit_into_what_is_free_now(
    device: dict[str, int | None], beside: bool | None
) -> None:
    assert outlook(HUB, [], answer(device)).beside is beside


def test_a_load_is_stretched_with_the_memory_of_the_model() -> None:
    memory: dict[str, object] = {"devices": [{"device": "host", "actual": 4}]}
    view = attrs.evolve(SERVING, load_s=8.0, memory=memory)
    made = agent_outlook(view, answer({"needed": 6}), models=(HUB,), cached=[])
    assert made.load_s == 12.0
    assert agent_outlook(SERVING, answer({"needed": 6}), models=(HUB,), cached=[]).load_s is None
    assert "load time unknown" in outlook(HUB, None, answer()).words


@pytest.mark.parametrize(
    ("change", "agents", "rolls", "gap_s", "why"),
    [
        ("in_place", [READY], True, 0.0, "running model"),
        ("weights", [READY, READY], True, 0.0, "in turn"),
        ("weights", [READY, READY], False, 20.0, "same time"),
        ("weights", [READY], True, 20.0, "do not fit side by side"),
        ("context", [attrs.evolve(READY, beside=True)], True, 0.0, "beside the old one"),
        ("reload", [attrs.evolve(READY, beside=True)], False, 0.0, "beside the old one"),
        ("weights", [attrs.evolve(READY, beside=None)], True, 20.0, "unknown"),
        ("weights", [attrs.evolve(READY, load_s=None)], True, None, "no load was measured"),
        ("added", [attrs.evolve(READY, serves_now=False)], True, 20.0, "nobody serves it yet"),
        ("weights", [], True, None, "no agent"),
        ("reload", [READY], False, 20.0, "same time"),
    ],
)
def test_the_gap_is_what_nobody_serves(
    change: str, agents: list[AgentOutlook], rolls: bool, gap_s: float | None, why: str
) -> None:
    gap = expected_gap(change, agents, rolls=rolls, max_unavailable=1)
    assert gap.gap_s == gap_s
    assert why in gap.why


def test_as_many_at_once_as_there_are_leave_nobody() -> None:
    gap = expected_gap("weights", [READY, READY], rolls=True, max_unavailable=2)
    assert gap.gap_s == 20.0


def test_the_instance_of_a_host_is_asked_else_the_host() -> None:
    def view(id_: str, host: str, deployment: str, **labels: str) -> AgentView:
        return attrs.evolve(
            SERVING, id=id_, name=f"n{id_}", host=host, deployment=deployment, labels=labels
        )

    agents = [
        view("1", "1", "default", gpu="yes"),
        view("1.coder", "1", "coder", gpu="yes"),
        view("2", "2", "default"),
        view("3", "3", "default", gpu="yes"),
        view("3.other", "3", "other", gpu="yes"),
    ]

    def asked(deployment: str, *where: str) -> list[str]:
        return [each.id for each in instances(agents, deployment, where)]

    assert asked("default") == ["1", "2", "3"]
    assert asked("coder") == ["1.coder", "2", "3"]
    assert asked("coder", "gpu=yes") == ["1.coder", "3"]
    assert asked("coder", "gpu=yes", "agent=n3") == ["3"]
    assert asked("coder", "gpu=no") == []


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.42, "0.4 s"), (25.4, "25 s"), (119, "119 s"), (180, "3 min")]
)
def test_seconds_have_one_unit(seconds: float, words: str) -> None:
    assert seconds_words(seconds) == words
