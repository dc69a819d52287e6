"""A slice of ``benchmarks/attack.py``: small attacks of every kind on a real fleet.

Time is not judged here: a busy machine would decide. What has to hold on any machine is that no
process is lost, that every attack ends with an answer or a clear error, and that what others are
answered meanwhile is right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trio

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from attack_call import Port
from attack_fleet import AttackedFleet
from attack_kinds import KINDS, attack_at
from attack_run import play
from attack_value import Attack

SEED = 11
SCALE = 0.005
"""Of an attack's full size: some kilobytes."""
PATIENCE_S = 60.0
MEMBERS = 7
"""Three balancers, an agent and its engine, two agents in front of servers."""
TEXT = "Seven ships sail slowly towards a distant harbour."


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], AttackedFleet]]:
    """The fleet that all tests share, or another one where that has lost a process."""
    started: list[AttackedFleet] = []

    def whole() -> AttackedFleet:
        if not started or len(started[-1].members()) < MEMBERS:
            folder = tmp_path_factory.mktemp("fleet")
            started.append(AttackedFleet.start(folder, agents=1, memory_bytes=4 << 30))
        return started[-1]

    try:
        yield whole
    finally:
        for each in started:
            each.end()


@pytest.fixture
def fleet(fleets: Callable[[], AttackedFleet]) -> AttackedFleet:
    return fleets()


async def neighbour(fleet: AttackedFleet, port: Port) -> str:
    """What somebody else is answered on a port, of whom only one answer is possible."""
    body = {
        "messages": [{"role": "user", "content": "Where do the ships sail?"}],
        "guided_choice": [TEXT],
        "enable_thinking": False,  # reasoning is free, and may take all tokens that there are
    }
    url = f"http://{fleet.addresses[port]}/v1/chat/completions"
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
        answer = await http.post(url, json=body, headers={"X-Paddler-Client": "neighbour"})
    assert answer.status_code == 200, answer.text
    content = answer.json()["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


async def beside(fleet: AttackedFleet, attack: Attack, texts: list[str]) -> list[str | None]:
    """What is wrong with each answer of the attack, in whose middle the neighbour asks."""
    calls = attack.calls()

    async def ask() -> None:
        texts.append(await neighbour(fleet, attack.neighbour))

    async with trio.open_nursery() as nursery:
        if not attack.changes_state:
            nursery.start_soon(ask)
        answers = await play(calls, fleet.addresses, PATIENCE_S)
    return [answer.problem(call) for call, answer in zip(calls, answers, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_small_attacks_harm_nobody(kind: str, fleet: AttackedFleet) -> None:
    generators = KINDS[kind]
    for number in {generator: number for number, generator in enumerate(generators)}.values():
        members = fleet.members()
        attack = attack_at(kind, number, SEED, SCALE)
        texts: list[str] = []
        problems = trio.run(beside, fleet, attack, texts)
        if attack.changes_state:
            fleet.restore()
            fleet.wait_serving()
            texts.append(trio.run(neighbour, fleet, attack.neighbour))
        now = fleet.members()
        lost = {name for name, pid in members.items() if now.get(name) != pid}
        if attack.changes_state:  # an engine that is swapped is not lost
            lost = {name for name in lost if not name.startswith("engine")}
        assert not lost, attack.name
        assert not any(problems), f"{attack.name}: {problems}"
        assert texts == [TEXT], attack.name
