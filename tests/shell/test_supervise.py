"""Supervision in virtual time: what is run again, how often, and what passes through."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from paddler_trio.errors import ChildGaveUpError
from paddler_trio.system.printed_tree import running_tree
from paddler_trio.system.supervise import Child, RestartBudget, supervise


@attrs.define
class Crashing:
    """Fails after a second of work, as often as it is told; remembers when it began."""

    times: int
    error: type[Exception] = OSError
    began_s: list[float] = attrs.field(factory=list)
    told: list[BaseException] = attrs.field(factory=list)

    async def run(self) -> None:
        self.began_s.append(trio.current_time())
        await trio.sleep(1)
        if len(self.began_s) <= self.times:
            raise self.error("out of luck")

    def child(self, *, max_restarts: int, wait_for_refill: bool = False) -> Child:
        return Child(
            "lucky",
            self.run,
            restart_on=(OSError,),
            budget=RestartBudget(
                max_restarts=max_restarts, period_s=60, first_pause_s=1, longest_pause_s=8
            ),
            wait_for_refill=wait_for_refill,
            on_crash=self.told.append,
        )


async def test_a_child_is_run_again_with_growing_pauses(autojump_clock: MockClock) -> None:
    body = Crashing(times=3)
    await supervise(body.child(max_restarts=5))
    gaps_s = [b - a for a, b in zip(body.began_s, body.began_s[1:], strict=False)]
    assert gaps_s == pytest.approx([2, 3, 5])
    assert len(body.told) == 3


async def test_a_child_that_keeps_crashing_takes_its_parent_down(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(ChildGaveUpError, match=r"more than 2 times in 60 s.*out of luck"):
        await supervise(Crashing(times=99).child(max_restarts=2))


async def test_or_waits_until_its_budget_is_refilled(autojump_clock: MockClock) -> None:
    body = Crashing(times=4)
    await supervise(body.child(max_restarts=2, wait_for_refill=True))
    assert len(body.began_s) == 5
    for start_s in body.began_s:
        assert sum(start_s <= moment_s < start_s + 59 for moment_s in body.began_s) <= 4


async def test_bugs_and_cancellation_pass_through(autojump_clock: MockClock) -> None:
    body = Crashing(times=1, error=AssertionError)
    with pytest.raises(AssertionError):
        await supervise(body.child(max_restarts=5))
    assert len(body.began_s) == 1
    with trio.move_on_after(0.5) as scope:
        await supervise(Crashing(times=1).child(max_restarts=5))
    assert scope.cancelled_caught


async def test_the_printed_tree_knows_restarts_and_the_last_crash(
    autojump_clock: MockClock,
) -> None:
    body = Crashing(times=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise, body.child(max_restarts=5), name="the lucky one")
        await trio.sleep(5.5)  # it runs for the third time, until 6
        found = [node for node in _all(running_tree()) if node.name == "the lucky one"]
        assert [node.restarts for node in found] == [2]
        assert found[0].last_crash == "OSError: out of luck"


def _all(node: object) -> list:  # type: ignore[type-arg]  # tree nodes, flattened
    return [node, *(deeper for child in node.children for deeper in _all(child))]  # type: ignore[attr-defined]
