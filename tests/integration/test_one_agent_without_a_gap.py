"""An agent with real engines: models swapped beside each other, and several of them at once."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from balancer_double import BalancerDouble, Link, balancer_double
from fleet import BUNDLED_MODEL, children, is_engine
from gguf import GGUFReader

from distinct_models import write_model
from paddler_trio import __version__
from paddler_trio.agent.assembly.agent_daemon import serve_agent
from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.model import model_server
from paddler_trio.agent.model.serving import OTHER_MODEL
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.system.systemd_notify import SystemdNotifier
from paddler_trio.system.thread_priority import GIVE_WAY
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    InferenceParameters,
    KvCacheDtype,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.trio.trio_link import Instances, InstanceWanted, Placement

SLOTS = 4
LABELS = {"gpu": "no"}


@attrs.define(eq=False)
class World:
    balancer: BalancerDouble
    stop: trio.Event
    ended: trio.Event


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """A balancer's double and a whole agent, in this process; engines are processes."""
    async with trio.open_nursery() as nursery, balancer_double() as balancer:
        config = AgentConfig(
            management_host="127.0.0.1",
            management_port=balancer.port,
            slots=SLOTS,
            name="host",
            threads=1,
            drain_timeout_s=60,
            labels=LABELS,
        )
        stop, ended = trio.Event(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            await serve_agent(config, stop, notifier=SystemdNotifier(), task_status=task_status)
            ended.set()

        await nursery.start(run)
        yield World(balancer, stop, ended)
        nursery.cancel_scope.cancel()


def state(model: Path, context_size: int = 2048) -> AgentDesiredState:
    return AgentDesiredState(
        chat_template_override=None,
        inference_parameters=InferenceParameters(
            context_size=context_size,
            k_cache_dtype=KvCacheDtype.F16,
            v_cache_dtype=KvCacheDtype.F16,
            temperature=0.0,
        ),
        model=LocalToAgent(str(model)),
        multimodal_projection=NoModel(),
    )


_OTHERS: frozenset[int] = frozenset()


def engines() -> list[int]:
    """Of the agent in this process, oldest first; other tests may have engines here as well."""
    return [pid for pid in children(os.getpid()) if is_engine(pid) and pid not in _OTHERS]


def gives_way(engine: int) -> bool:
    """It was told to load at a low priority."""
    return GIVE_WAY.encode() in Path(f"/proc/{engine}/cmdline").read_bytes().split(b"\0")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(globals(), "_OTHERS", frozenset(children(os.getpid())))
    monkeypatch.setattr(model_server, "FIRST_RETRY_S", 0.05)


async def test_a_swap_with_room_has_no_moment_without_slots_and_loses_no_stream(
    tmp_path: Path,
) -> None:
    other = write_model(tmp_path / "other.gguf", "\t")
    async with world() as it:
        link = await it.balancer.link("host")
        assert link.placement == Placement(host=link.id, deployment="default", labels=LABELS)
        assert link.first == ["Placement", "RegisterAgent"]
        old = await link.want(state(BUNDLED_MODEL, 32768))
        await it.balancer.until(lambda: link.report.served_state == old)
        await it.balancer.until(lambda: link.slots[-1] == SLOTS)
        assert link.report.load_s is not None
        old_model = link.report.model
        seen, slots = len(link.reports), len(link.slots)
        running = [await link.start(f"r{i}", max_tokens=8000) for i in range(SLOTS - 1)]
        await it.balancer.until(lambda: all(stream.came_s for stream in running))
        (engine,) = engines()
        assert not gives_way(engine)
        own_niceness = os.getpriority(os.PRIO_PROCESS, engine)
        new = await link.want(state(other, 32768))
        await it.balancer.until(lambda: any(r.phase == "loading" for r in link.reports[seen:]))
        during = await link.start("during", max_tokens=5)
        await it.balancer.until(lambda: len(engines()) == 2)
        os.kill(engines()[-1], signal.SIGKILL)
        await it.balancer.until(lambda: any(r.phase == "failed" for r in link.reports))
        assert not any(stream.ending for stream in running), "they run while models are swapped"
        await it.balancer.until(lambda: link.report.served_state == new)
        after = await link.start("after", max_tokens=5)
        await it.balancer.until(lambda: after.ending is not None and during.ending is not None)
        assert not any(stream.ending for stream in running), "on the old model still"
        assert len(engines()) == 2
        assert gives_way(engines()[-1]), "the other one computes while it loads"
        assert os.getpriority(os.PRIO_PROCESS, engines()[-1]) == own_niceness, (
            "it does not any more"
        )
        await what_is_bound_is_answered_by_its_model_or_handed_back(
            it.balancer, link, gone=(old, old_model), here=(new, link.report.model)
        )
        for number in range(SLOTS - 1):
            await link.stop(f"r{number}")
        await it.balancer.until(lambda: all(stream.ending for stream in running))
        assert [each.ending for each in (*running, during, after)] == ["Done"] * (SLOTS + 1)
        await it.balancer.until(lambda: len(engines()) == 1)
        assert engines() != [engine]
        reports = link.reports[seen:]
        assert {report.served_state for report in reports} == {old, new}
        assert {"loading", "probing", "failed", "serving"} <= {report.phase for report in reports}
        assert "draining" not in {report.phase for report in reports}
        assert set(link.slots[slots:]) == {SLOTS}
        assert link.report.room[0].device == "host"
        os.kill(engines()[0], signal.SIGKILL)
        await it.balancer.until(lambda: link.slots[-1] == 0)
        late = await link.start("late", max_tokens=5, bound=new)
        await it.balancer.until(lambda: late.ending is not None)
        assert late.ending == "handed back: this agent serves no model now"
        await it.balancer.until(lambda: len(engines()) == 1 and not gives_way(engines()[0]))


async def what_is_bound_is_answered_by_its_model_or_handed_back(
    balancer: BalancerDouble,
    link: Link,
    *,
    gone: tuple[str | None, ...],
    here: tuple[str | None, ...],
) -> None:
    """Digests and models: those of before the swap, whose engine runs still, and those after it.
    What was sent before the agent's report of the swap was read is as late as what comes now."""
    late = [await link.start(f"late {i}", max_tokens=5, bound=name) for i, name in enumerate(gone)]
    due = [await link.start(f"due {i}", max_tokens=5, bound=name) for i, name in enumerate(here)]
    await balancer.until(lambda: all(stream.ending is not None for stream in (*late, *due)))
    assert {stream.ending for stream in late} == {f"handed back: {OTHER_MODEL}"}
    assert not any(stream.came_s for stream in late)
    assert {stream.ending for stream in due} == {"Done"}


async def test_instances_are_added_and_removed_and_drain_with_the_agent() -> None:
    async with world() as it:
        host = await it.balancer.link("host")
        await host.send(
            Instances(
                instances=(
                    InstanceWanted(deployment="coder", slots=2),
                    InstanceWanted(deployment="chat"),
                )
            )
        )
        coder = await it.balancer.link("host.coder")
        chat = await it.balancer.link("host.chat")
        assert coder.id == f"{host.id}.coder"
        assert coder.placement == Placement(host=host.id, deployment="coder", labels=LABELS)
        assert coder.first == ["Placement", "RegisterAgent"]
        coder_state = await coder.want(state(BUNDLED_MODEL))
        chat_state = await chat.want(state(BUNDLED_MODEL, 4096))
        await it.balancer.until(lambda: coder.report.served_state == coder_state)
        await it.balancer.until(lambda: chat.report.served_state == chat_state)
        await it.balancer.until(lambda: (coder.slots[-1], chat.slots[-1]) == (2, SLOTS))
        assert len(engines()) == 2
        assert host.report.phase == "waiting", "the first link has no model of its own"
        long = await coder.start("long", max_tokens=300)
        stays = await chat.start("stays", max_tokens=200)
        await it.balancer.until(lambda: bool(long.came_s and stays.came_s))
        await host.send(Instances(instances=(InstanceWanted(deployment="chat"),)))
        await it.balancer.until(lambda: coder.slots[-1] == 0)
        assert not coder.has_left, "its answer is not out yet"
        await it.balancer.until(lambda: coder.has_left)
        assert long.ending == "Done"
        await it.balancer.until(lambda: stays.ending is not None)
        assert stays.ending == "Done"
        with trio.fail_after(60):
            while len(engines()) != 1:  # noqa: ASYNC110
                await trio.sleep(0.01)  # a process's end is no frame
        last = await chat.start("last", max_tokens=100)
        await it.balancer.until(lambda: bool(last.came_s))
        it.stop.set()
        with trio.fail_after(60):
            await it.ended.wait()
        assert last.ending == "Done"
        assert chat.has_left
        assert host.has_left
        assert engines() == []


def load_of(model: Path) -> LoadModel:
    return LoadModel(
        model_path=str(model),
        slots=1,
        context_size=256,
        n_batch=64,
        n_gpu_layers=0,
        k_cache_dtype="F16",
        v_cache_dtype="F16",
        threads=1,
        package_version=__version__,
    )


def processor_s(pid: int) -> float:
    """What the process has computed, whoever else is on its cores."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def proved_in_s(model: Path) -> float:
    """The processor time of the first decode; LoadFailedError if it is wrong."""
    seen_s: list[float] = []

    def look() -> None:
        assert engine.pid is not None
        seen_s.append(processor_s(engine.pid))

    def up(ready: Ready) -> None:
        look()
        nursery.cancel_scope.cancel()

    engine = EngineProcess(
        load_of(model),
        lambda progress: None,
        up,
        lambda step: None,
        lambda stats: None,
        look,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
    loaded_s, proved_s = seen_s
    return proved_s - loaded_s


async def test_the_first_decode_takes_moments() -> None:
    assert await proved_in_s(BUNDLED_MODEL) < 1.0


async def test_weights_that_are_no_numbers_fail_the_load(tmp_path: Path) -> None:
    """A file that llama.cpp loads without complaint."""
    broken = tmp_path / "nan.gguf"
    reader = GGUFReader(BUNDLED_MODEL)
    tensor = next(each for each in reader.tensors if each.name == "output_norm.weight")
    data = bytearray(BUNDLED_MODEL.read_bytes())
    nan = struct.pack("<f", float("nan"))
    data[tensor.data_offset : tensor.data_offset + tensor.n_bytes] = nan * (tensor.n_bytes // 4)
    broken.write_bytes(data)
    with pytest.RaisesGroup(pytest.RaisesExc(LoadFailedError, match="logits are not finite")):
        await proved_in_s(broken)
