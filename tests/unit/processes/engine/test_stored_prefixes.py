"""When prefixes are copied to host memory: a real model, pass by pass."""

from __future__ import annotations

import time
from queue import SimpleQueue

import attrs
import numpy as np
import pytest

from paddler_trio.processes.engine.admitted import Admitted, admit
from paddler_trio.processes.engine.decode_loop import Command, DecodeLoop, streams_for
from paddler_trio.processes.engine.llama.context_shape import ContextShape
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.memory.host_memory import HostMemory
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.sampling.sampling_pool import SamplingPool
from paddler_trio.processes.engine.stats import Counters
from paddler_trio.processes.engine.stored_prefixes import StoredPrefixes
from paddler_trio.scheduler.batching.prefill_controller import PrefillController
from paddler_trio.scheduler.batching.prefix_store import PrefixStore
from paddler_trio.wire.engine.engine_pipe import StartSequence, Step
from paddler_trio.wire.engine.engine_settings import EngineSettings
from samplings import GREEDY

SAMPLING = attrs.evolve(GREEDY, ignore_eos=True)
STORE_BYTES = 64 << 20


class WatchedLlama(Llama):
    """llama.cpp, and a list of what was asked of it."""

    def __init__(self, model: object) -> None:
        super().__init__(model)
        self.calls: list[str] = []

    def decode(self) -> int:
        self.calls.append("decode")
        return super().decode()

    def save(self, stream: int, data: np.ndarray) -> None:
        self.calls.append("save")
        super().save(stream, data)


@attrs.define
class Bench:
    """A decode loop that is driven by hand."""

    llama: WatchedLlama
    shape: ContextShape
    loop: DecodeLoop
    steps: list[Step] = attrs.field(factory=list)
    keys: int = 0

    def ask(self, prompt: list[int], max_tokens: int = 2) -> int:
        self.keys += 1
        start = StartSequence(self.keys, prompt, [], max_tokens, SAMPLING, None)
        admitted = admit(self.llama, self.shape, start)
        assert isinstance(admitted, Admitted)
        self.loop.commands.put(admitted)
        return self.keys

    def run_until_idle(self) -> None:
        self.loop.take_commands()
        while not self.loop.streams.is_idle:
            self.loop.run_pass()

    def cached(self, key: int) -> int:
        return next(e.num_cached_tokens for s in self.steps for e in s.endings if e.key == key)


def make_bench(settings: EngineSettings, context_size: int = 2048) -> Bench:
    llama = WatchedLlama.load(str(BUNDLED_MODEL), n_gpu_layers=0, progress=lambda _: None)
    assert isinstance(llama, WatchedLlama)
    shape = llama.open_context(
        slots=2,
        context_size=context_size,
        n_batch=512,
        k_cache_dtype="F16",
        v_cache_dtype="F16",
        threads=1,
        settings=settings,
    )
    prefill_controller = PrefillController()
    size = settings.prefix_store_bytes
    plan = PrefixStore(size, shape.rules)
    stored = StoredPrefixes(llama, HostMemory(size), plan, prefill_controller)
    steps: list[Step] = []
    loop = DecodeLoop(
        llama,
        shape,
        streams_for(llama, shape, 2, has_store=True),
        prefill_controller,
        stored,
        SimpleQueue[Command](),
        steps.append,
        Counters(lambda _: None),
        SamplingPool(1, llama.n_vocab),
    )
    return Bench(llama, shape, loop, steps)


@pytest.fixture
def bench() -> Bench:
    return make_bench(EngineSettings(prefix_store_bytes=STORE_BYTES))


def prompt(number: int, length: int = 200) -> list[int]:
    return [300 + (number * 7 + place * number) % 900 for place in range(length)]


def without_budget(bench: Bench) -> None:
    """Passes never earned time for a copy."""
    bench.loop.stored.budget.passed(1, target_ms=80)
    bench.loop.stored.budget.saved(1, 1e9)


def test_a_request_never_waits_for_what_it_replaces_to_be_saved(bench: Bench) -> None:
    without_budget(bench)
    for number in (1, 2):
        bench.ask(prompt(number))
    bench.run_until_idle()
    for number in (3, 4):
        bench.ask(prompt(number))
    bench.run_until_idle()
    assert "save" not in bench.llama.calls
    again = bench.ask(prompt(1))
    bench.run_until_idle()
    assert bench.cached(again) == 0, "it was replaced before it was saved"


def test_what_is_idle_is_saved_between_passes_while_others_generate(bench: Bench) -> None:
    short = bench.ask(prompt(1), max_tokens=1)
    bench.ask(prompt(2), max_tokens=40)
    bench.run_until_idle()
    assert bench.llama.calls.count("save") == 1, "of the one that ended while the other went on"
    between = bench.llama.calls.index("save")
    assert "decode" in bench.llama.calls[between:]
    for number in (3, 4, 5):
        bench.ask(prompt(number))
        bench.run_until_idle()
    again = bench.ask(prompt(1), max_tokens=1)
    bench.run_until_idle()
    assert bench.cached(short) == 0
    assert bench.cached(again) == len(prompt(1)) - 1, "it came back from host memory"


def test_what_has_no_time_between_passes_is_saved_once_the_engine_is_idle(bench: Bench) -> None:
    without_budget(bench)
    for number in (1, 2):
        bench.ask(prompt(number))
    bench.run_until_idle()
    stored, streams = bench.loop.stored, bench.loop.streams
    assert stored.num_tokens == 0
    while (wait_s := stored.idle_wait_s(streams)) is not None:
        assert wait_s > 0
        assert stored.save_while_idle(streams)
    assert stored.num_tokens > 400
    assert not stored.save_while_idle(streams), "everything is saved"
    for number in (3, 4):
        bench.ask(prompt(number))
    bench.run_until_idle()
    again = bench.ask(prompt(1))
    bench.run_until_idle()
    assert bench.cached(again) == len(prompt(1)) - 1


@pytest.mark.parametrize("has_store", [True, False])
def test_a_full_pool_makes_room_for_what_comes_back_from_host_memory(has_store: bool) -> None:
    """Four conversations of 600 tokens, of which 300 are common to all, in a pool of 1024."""
    bench = make_bench(
        EngineSettings(prefix_store_bytes=STORE_BYTES if has_store else 0, unified=True),
        context_size=1024,
    )
    memory = bench.loop.stored.memory
    memory.start(on_crash=_fail)
    memory.want(memory.num_bytes)
    while memory.ready_bytes < memory.num_bytes:
        time.sleep(0)
    prompts = [prompt(1, 300) + prompt(number, 300) for number in range(2, 6)]
    asked = []
    for tokens in prompts * 2:
        asked.append(bench.ask(tokens))
        bench.run_until_idle()
        while bench.loop.stored.save_while_idle(bench.loop.streams):
            pass
    again = [bench.cached(key) for key in asked[len(prompts) :]]
    if has_store:
        assert again == [599] * len(prompts)
    else:
        assert min(again) == 300, "all have the beginning"
        assert sum(again) < 599 * len(prompts), "and not all are in the pool"


def test_who_arrives_while_others_generate_is_computed_in_the_pass_that_runs(bench: Bench) -> None:
    bench.ask(prompt(1), max_tokens=40)
    bench.loop.take_commands()
    bench.loop.run_pass()
    bench.loop.run_pass()
    decode = bench.llama.decode

    def arrive() -> int:
        bench.llama.decode = decode  # type: ignore[method-assign]
        bench.ask(prompt(2, 40), max_tokens=1)
        return decode()

    bench.llama.decode = arrive  # type: ignore[method-assign]
    bench.steps.clear()
    bench.loop.run_pass()
    assert [token.key for step in bench.steps for token in step.sampled] == [1, 2]


def test_memory_is_made_ready_beside_everything_else() -> None:
    memory = HostMemory(32 << 20)
    ready = memory.ready_bytes
    assert 0 < ready < memory.num_bytes
    with pytest.raises(AssertionError, match="not ready"):
        memory.view(ready, 1)
    memory.start(on_crash=_fail)
    memory.want(ready + 1)
    memory.want(1 << 40)
    while memory.ready_bytes < memory.num_bytes:
        time.sleep(0)
    memory.view(memory.num_bytes - 3, 3)[:] = 7
    assert memory.view(memory.num_bytes - 4, 4).tolist() == [0, 7, 7, 7]


def test_without_address_space_there_is_no_store(capfd: pytest.CaptureFixture[str]) -> None:
    memory = HostMemory(1 << 62)
    assert memory.num_bytes == 0
    assert "--prefix-cache-ram" in capfd.readouterr().err


def _fail() -> None:
    raise AssertionError("the thread died")
