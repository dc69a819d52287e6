"""The text of a scrape: whole, in pieces, once a second, in the format that is accepted."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock, wait_all_tasks_blocked

from paddler_trio.telemetry.balancer_metrics import AGENT_SLOTS, AGENT_UP, TIME_TO_FIRST_TOKEN
from paddler_trio.telemetry.exposition import (
    PIECE,
    Exposition,
    accepts_openmetrics,
    metric_prefix,
)
from paddler_trio.telemetry.recording import (
    Family,
    Histogram,
    distributed,
    family,
    single,
)
from paddler_trio.telemetry.shared_metrics import PADDLERS

HARD_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@attrs.define
class Collected:
    """Three gauges, and an agent for each name."""

    names: list[str] = attrs.field(factory=list)
    times: int = 0

    def __call__(self) -> Iterator[Family]:
        self.times += 1
        for number, each in enumerate(PADDLERS):
            yield single(each, number)
        yield family(AGENT_UP, {(name,): number for number, name in enumerate(self.names)})


@given(st.lists(HARD_NAMES, unique=True, max_size=5))
def test_any_name_is_read_back_as_it_is(names: list[str]) -> None:
    exposition = Exposition("paddler_", Collected(names))
    for openmetrics, parse in (
        (False, text_string_to_metric_families),
        (True, openmetrics_families),
    ):
        text = trio.run(lambda om=openmetrics: exposition.text(openmetrics=om)).decode()
        found = {
            sample.labels["agent"]: sample.value
            for each in parse(text)
            if each.name == "paddler_agent_up"
            for sample in each.samples
        }
        assert found == {name: number for number, name in enumerate(names)}


@pytest.mark.parametrize("openmetrics", [False, True])
async def test_pieces_make_one_text_with_one_header_a_metric(openmetrics: bool) -> None:
    names = [f"agent{number}" for number in range(3 * PIECE + 1)]
    text = await Exposition("p_", Collected(names)).text(openmetrics=openmetrics)
    lines = text.decode().splitlines()
    assert lines.count("# TYPE p_agent_up gauge") == 1
    shown = [line for line in lines if line.startswith("p_agent_up{")]
    assert shown == [f'p_agent_up{{agent="{name}"}} {n}.0' for n, name in enumerate(names)]
    assert (lines[-1] == "# EOF") == openmetrics
    assert lines.count("# EOF") == int(openmetrics)


async def test_the_loop_turns_between_pieces() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        turns = 0
        names = [f"agent{number}" for number in range(10 * PIECE)]
        await Exposition("p_", Collected(names)).text()
        assert turns >= 10
        nursery.cancel_scope.cancel()


async def test_a_text_is_kept_for_a_second_and_made_once(autojump_clock: MockClock) -> None:
    collected = Collected([f"agent{number}" for number in range(5 * PIECE)])
    exposition = Exposition("p_", collected)
    texts: list[bytes] = []

    async def ask() -> None:
        texts.append(await exposition.text())

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert (len(texts), len(set(texts)), collected.times) == (10, 1, 1)
    await trio.sleep(0.99)
    await ask()
    assert collected.times == 1
    await trio.sleep(0.01)
    await ask()
    assert collected.times == 2


async def test_who_waits_for_a_client_that_left_begins_anew() -> None:
    collected = Collected([f"agent{number}" for number in range(5 * PIECE)])
    exposition = Exposition("p_", collected)
    texts: list[bytes] = []

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            texts.append(await exposition.text())

    first, second = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, first)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(ask, second)
        await trio.lowlevel.checkpoint()
        first.cancel()
    assert (len(texts), collected.times) == (1, 2)
    assert texts[0].count(b"\np_agent_up{") == 5 * PIECE
    await wait_all_tasks_blocked()


async def test_paddlers_gauges_are_as_paddler_writes_them() -> None:
    text = await Exposition("my.app.", Collected()).text()
    assert text.decode() == (
        "# HELP my_app_slots_processing Number of processing slots\n"
        "# TYPE my_app_slots_processing gauge\n"
        "my_app_slots_processing 0\n"
        "\n"
        "# HELP my_app_slots_total Number of total slots\n"
        "# TYPE my_app_slots_total gauge\n"
        "my_app_slots_total 1\n"
        "\n"
        "# HELP my_app_requests_buffered Number of buffered requests\n"
        "# TYPE my_app_requests_buffered gauge\n"
        "my_app_requests_buffered 2\n"
    )


async def test_exemplars_are_for_openmetrics_alone() -> None:
    histogram = Histogram(TIME_TO_FIRST_TOKEN)
    histogram.of("default").add(0.3)
    histogram.of("default").exemplify(0.3, "trace_id", "ab" * 16)

    def collect() -> Iterator[Family]:
        yield from Collected()()
        yield distributed(histogram)

    exposition = Exposition("p_", collect)
    assert b"trace_id" not in await exposition.text()
    text = (await exposition.text(openmetrics=True)).decode()
    (found,) = (
        (sample.labels["le"], sample.exemplar)
        for each in openmetrics_families(text)
        for sample in each.samples
        if sample.exemplar
    )
    assert found[0] == "0.5"
    assert (found[1].labels, found[1].value) == ({"trace_id": "ab" * 16}, 0.3)


def test_labels_are_in_the_order_of_the_definition() -> None:
    (sample,) = family(AGENT_SLOTS, {("a1", "idle"): 2}).samples
    assert sample.labels == (("agent", "a1"), ("state", "idle"))


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        (b"*/*", False),
        (b"text/plain;version=0.0.4", False),
        (b"application/openmetrics-text", True),
        (b"Application/OpenMetrics-Text; version=1.0.0;q=0.6, text/plain;q=0.5", True),
        (b"text/plain, application/openmetrics-text;q=0", False),
        (b"application/openmetrics-texts", False),
        (b";;,,;q=,", False),
    ],
)
def test_openmetrics_is_for_those_who_name_it(accept: bytes | None, expected: bool) -> None:
    assert accepts_openmetrics(accept) == expected


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("paddler_", "paddler_"), ("", ""), ("a.b-c ", "a_b_c_"), ("7x", "_7x"), ("é", "_")],
)
def test_a_prefix_has_only_what_names_may_have(prefix: str, expected: str) -> None:
    assert metric_prefix(prefix) == expected
