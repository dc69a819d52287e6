"""What an agent shows of its instances."""

from __future__ import annotations

import attrs
import trio
from trio.testing import MockClock

from monitoring_files import AGENT_METRICS
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.requests.instance_measures import InstanceMeasures
from paddler_trio.models.download.download_progress import DownloadProgress
from paddler_trio.system.loop_lag import LoopLag
from paddler_trio.wire.engine.engine_pipe import EngineStats

Labels = tuple[tuple[str, str], ...]


@attrs.define
class Link:
    is_up: bool = True
    num_connections: int = 1


def shown(measures: InstanceMeasures) -> dict[str, dict[Labels, float]]:
    return {
        each.definition.name: {
            sample.labels: sample.value for sample in each.samples if sample.suffix != "_bucket"
        }
        for each in measures.collect()
    }


async def test_instances_are_apart_by_deployment_and_added_up_in_paddlers_gauges() -> None:
    measures = InstanceMeasures(LoopLag())
    for name, running in (("default", 1), ("coder", 2)):
        status = AgentStatus(4)
        status.set(is_serving=True)
        status.set_running(generations=running)
        status.stats = EngineStats(
            waiting=3, cells_total=100, cells_used=50, cells_resident=30, drawn_tokens=7
        )
        measures.add(name, status, Link())
    found = shown(measures)
    assert found["slots_processing"] == {(): 3}
    assert found["slots_total"] == {(): 8}
    assert found["requests_buffered"] == {(): 6}
    default, coder = ("deployment", "default"), ("deployment", "coder")
    assert found["agent_slots"][coder, ("state", "idle")] == 2
    assert found["kv_cache_usage_ratio"] == {(default,): 0.2, (coder,): 0.2}
    assert found["kv_cells"][default, ("state", "free")] == 50
    assert found["engine_generated_tokens_total"] == {(default,): 7, (coder,): 7}
    assert sorted([*found, "model_cache_free_bytes"]) == sorted(e.name for e in AGENT_METRICS)


async def test_what_is_not_served_any_more_is_not_shown() -> None:
    served = ["default", "coder"]
    measures = InstanceMeasures(LoopLag(), deployments=lambda: served)
    for name in ("default", "coder"):
        measures.add(name, AgentStatus(1), Link())
    assert len(shown(measures)["agent_link_up"]) == 2
    served.remove("coder")
    assert shown(measures)["agent_link_up"] == {(("deployment", "default"),): 1}


async def test_speeds_and_loads_are_seen_in_passing(autojump_clock: MockClock) -> None:
    measures, status = InstanceMeasures(LoopLag(), lambda: 42), AgentStatus(1)
    measures.add("default", status, Link(is_up=False))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measures.run)
        await trio.sleep(0.5)  # between two samples
        for second in range(1, 4):
            status.stats = EngineStats(drawn_tokens=100 * second, prompt_tokens=10 * second)
            status.load_s = 2.5
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    found = shown(measures)
    label = (("deployment", "default"),)
    assert found["decode_tokens_per_second"] == {label: 100}
    assert found["prefill_tokens_per_second"] == {label: 10}
    assert found["model_load_seconds"] == {(): 2.5}
    assert found["agent_link_up"] == {label: 0}
    assert found["model_cache_free_bytes"] == {(): 42}


def test_downloads_count_bytes_that_came_and_none_twice() -> None:
    status = AgentStatus(1)
    one = DownloadProgress(source="hub", filename="a.gguf", file_count=2, current_bytes=1000)
    for current in (1000, 1500, 1500):
        status.set(download=attrs.evolve(one, current_bytes=current))
    status.set(phase="loading")
    assert status.downloaded_bytes == 500
    second = attrs.evolve(one, file_index=2, current_bytes=0)
    for current in (0, 300, 100):  # what was resumed may have to begin anew
        status.set(download=attrs.evolve(second, current_bytes=current))
    status.set(download=None)
    assert status.downloaded_bytes == 800


def test_restarts_are_reported_by_their_kind() -> None:
    status = AgentStatus(1)
    status.restart_kinds["killed"] += 1
    status.set(engine_restarts=1)
    assert status.report().engine == {"restarts": 1, "restarts_killed": 1}
