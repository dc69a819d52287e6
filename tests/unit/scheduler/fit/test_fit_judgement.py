"""Does a model fit: the verdicts and suggestions, over many models and machines."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import TypeVar

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.scheduler.fit.fit_judgement import LEAST_CELLS, Verdict, judge_fit
from paddler_trio.scheduler.fit.fit_suggestions import (
    Change,
    Suggestion,
    combined_ways,
    ways_to_fit,
)
from paddler_trio.scheduler.fit.fit_values import (
    HOST,
    LoadShape,
    Need,
    Room,
    context_of,
    layers_on_gpu,
    shortages,
)

T = TypeVar("T")
MIB = 1024**2
BYTES_OF_32 = {"F32": 128, "F16": 64, "Q8_0": 34, "Q4_0": 18}


@attrs.frozen(kw_only=True)
class Model:
    """What a dry run would answer: layers of attention, some with a window, some recurrent."""

    layer_bytes: tuple[int, ...]
    output_bytes: int
    input_bytes: int
    n_embd_kv: int
    """Elements of keys in a cell, and as many of values."""
    window: int
    num_windowed: int
    state_bytes: int
    """Of each slot, whatever its context."""
    compute_bytes: int
    compute_bytes_a_cell: int
    n_ctx_train: int
    gpu: str | None = "GPU0"
    refuses_small_cache: bool = False

    @property
    def n_layers(self) -> int:
        return len(self.layer_bytes) + 1

    def need(self, shape: LoadShape) -> Need | None:
        if self.refuses_small_cache and "Q8_0" in (shape.k_cache_dtype, shape.v_cache_dtype):
            return None
        cells = math.ceil((shape.context_size or self.n_ctx_train * shape.slots) / shape.slots)
        cells = 256 * math.ceil(cells / 256)
        layers = len(self.layer_bytes)
        asked = self.n_layers if shape.n_gpu_layers < 0 else shape.n_gpu_layers
        on_gpu = min(asked, self.n_layers) if self.gpu is not None else 0
        width = self.n_embd_kv * (
            BYTES_OF_32[shape.k_cache_dtype] + BYTES_OF_32[shape.v_cache_dtype]
        )
        used = {HOST: self.input_bytes}
        if self.gpu is not None:
            used[self.gpu] = 0
        for index, weights in enumerate([*self.layer_bytes, self.output_bytes]):
            place = self.gpu if index >= self.n_layers - on_gpu and self.gpu else HOST
            used[place] += weights
            if index == layers:
                continue
            kept = min(cells, self.window) if index < self.num_windowed else cells
            used[place] += kept * shape.slots * width // 32 + self.state_bytes * shape.slots
        place = self.gpu if on_gpu and self.gpu else HOST
        used[place] += self.compute_bytes + self.compute_bytes_a_cell * cells
        return Need(bytes_by_device=used, n_layers=self.n_layers, n_ctx_train=self.n_ctx_train)


sizes = st.integers(0, 2**34)
models = st.builds(
    Model,
    layer_bytes=st.integers(1, 80).flatmap(
        lambda n: st.one_of(
            st.integers(1, 2**30).map(lambda each: (each,) * n),
            st.lists(st.integers(1, 2**30), min_size=n, max_size=n).map(tuple),
        )
    ),
    output_bytes=sizes,
    input_bytes=sizes,
    n_embd_kv=st.sampled_from([0, 128, 1024, 8192]),
    window=st.sampled_from([256, 1024, 4096]),
    num_windowed=st.integers(0, 80),
    state_bytes=st.sampled_from([0, 0, 2**20, 2**26]),
    compute_bytes=st.integers(0, 2**32),
    compute_bytes_a_cell=st.integers(0, 2**14),
    n_ctx_train=st.sampled_from([1, 512, 2048, 40_960, 131_072, 1_048_576]),
    gpu=st.sampled_from([None, "GPU0"]),
    refuses_small_cache=st.booleans(),
)
shapes = st.builds(
    LoadShape,
    context_size=st.one_of(st.just(0), st.integers(1, 2**22), st.just(2**31 - 1)),
    slots=st.sampled_from([1, 2, 4, 7, 64, 256]),
    n_gpu_layers=st.integers(-1, 90),
    k_cache_dtype=st.sampled_from(sorted(BYTES_OF_32)),
    v_cache_dtype=st.sampled_from(sorted(BYTES_OF_32)),
)


def room(device: str, free: int | None, **more: int | None) -> Room:
    return Room(device=device, total_bytes=2**40, free_bytes=free, **more)  # type: ignore[arg-type]


bytes_free = st.one_of(st.integers(0, 2**36), st.integers(0, 2**42))


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Room]:
    host = room(HOST, draw(bytes_free), reserve_bytes=draw(st.sampled_from([0, 2**30])))
    gpu = room("GPU0", draw(bytes_free), held_bytes=draw(st.sampled_from([0, 2**33])))
    return draw(st.sampled_from([{HOST: host}, {HOST: host, "GPU0": gpu}]))


def driven(search: Generator[LoadShape, Need | None, T], model: Model) -> tuple[T, int]:
    """What the search returns, and how many dry runs it made."""
    runs, answer = 0, None
    try:
        shape = next(search)
        while True:
            runs += 1
            answer = model.need(shape)
            shape = search.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result, runs


def judged(model: Model, shape: LoadShape, rooms: Mapping[str, Room], **auto: bool) -> Verdict:
    verdict, runs = driven(judge_fit(shape, rooms, **auto), model)
    assert verdict is not None
    assert runs <= 60
    return verdict


def suggested(
    model: Model, verdict: Verdict, rooms: Mapping[str, Room]
) -> dict[tuple[Change, ...], Suggestion]:
    found = {}
    for way in [*ways_to_fit(verdict, rooms), *combined_ways(verdict, rooms)]:
        suggestion, runs = driven(way, model)
        assert runs <= 20
        if suggestion is not None:
            found[suggestion.changes] = suggestion
    return found


@settings(max_examples=examples(300))
@given(models, shapes, machines())
def test_a_verdict_is_the_comparison_of_the_numbers_given(
    model: Model, shape: LoadShape, rooms: dict[str, Room]
) -> None:
    need = model.need(shape)
    verdict, runs = driven(judge_fit(shape, rooms), model)
    assert runs == 1, "a load that is asked for is dry-run once"
    if need is None:
        assert verdict is None
        return
    assert verdict is not None
    assert verdict.need == need
    assert verdict.fits == all(
        needed <= (rooms[device].available_bytes or 0)
        for device, needed in need.bytes_by_device.items()
        if device in rooms
    )
    for short in verdict.shortages:
        assert short.needed_bytes == need.bytes_by_device[short.device]
        assert short.missing_bytes > 0


@settings(max_examples=examples(300))
@given(models, shapes, machines())
def test_whatever_is_suggested_fits_and_differs_in_what_it_names_alone(
    model: Model, shape: LoadShape, rooms: dict[str, Room]
) -> None:
    verdict, _ = driven(judge_fit(shape, rooms), model)
    if verdict is None or verdict.fits:
        return
    asked = verdict.shape
    for changes, suggestion in suggested(model, verdict, rooms).items():
        offered = suggestion.shape
        need = model.need(offered)
        assert need == suggestion.need
        assert need is not None
        assert not shortages(need, rooms)
        differs = {
            Change.CONTEXT_SIZE: offered.context_size != asked.context_size,
            Change.GPU_LAYERS: layers_on_gpu(offered, need) != layers_on_gpu(asked, need),
            Change.SLOTS: offered.slots != asked.slots,
            Change.KV_DTYPE: (offered.k_cache_dtype, offered.v_cache_dtype)
            != (asked.k_cache_dtype, asked.v_cache_dtype),
        }
        assert {change for change, is_so in differs.items() if is_so} == set(changes)
        if Change.CONTEXT_SIZE in changes:
            assert offered.context_size < asked.context_size
            assert offered.context_size % (256 * offered.slots) == 0


@settings(max_examples=examples(200))
@given(models, shapes, machines())
def test_a_context_that_is_suggested_is_the_largest_of_the_sizes_worth_trying(
    model: Model, shape: LoadShape, rooms: dict[str, Room]
) -> None:
    verdict, _ = driven(judge_fit(shape, rooms), model)
    if verdict is None or verdict.fits:
        return
    found = suggested(model, verdict, rooms).get((Change.CONTEXT_SIZE,))
    slots = verdict.shape.slots
    cells = 256 if found is None else found.shape.context_size // slots
    larger = attrs.evolve(verdict.shape, context_size=slots * (cells * 9 // 8 + 256))
    if found is None:
        larger = attrs.evolve(larger, context_size=256 * slots)
    if larger.context_size < verdict.shape.context_size:
        need = model.need(larger)
        assert need is not None
        assert shortages(need, rooms)


@settings(max_examples=examples(200))
@given(models, shapes, machines(), st.integers(0, 2**40))
def test_more_room_never_turns_a_fit_into_a_refusal_nor_shrinks_what_is_suggested_or_chosen(
    model: Model, shape: LoadShape, rooms: dict[str, Room], more_bytes: int
) -> None:
    roomier = {
        device: attrs.evolve(each, free_bytes=(each.free_bytes or 0) + more_bytes)
        for device, each in rooms.items()
    }
    if model.need(shape) is None:
        return
    small, large = judged(model, shape, rooms), judged(model, shape, roomier)
    assert large.fits or not small.fits
    if not large.fits:
        way = (Change.CONTEXT_SIZE,)
        before = suggested(model, small, rooms).get(way)
        after = suggested(model, large, roomier).get(way)
        if before is not None:
            assert after is not None
            assert after.shape.context_size >= before.shape.context_size
    first = judged(model, shape, rooms, chooses_context=True)
    second = judged(model, shape, roomier, chooses_context=True)
    if first.fits:
        assert second.fits
        assert second.shape.context_size >= first.shape.context_size


@settings(max_examples=examples(300))
@given(models, shapes, machines(), st.booleans(), st.booleans())
def test_what_is_chosen_fits_and_the_next_larger_context_does_not(
    model: Model, shape: LoadShape, rooms: dict[str, Room], context: bool, layers: bool
) -> None:
    if model.need(shape) is None:
        return
    verdict = judged(model, shape, rooms, chooses_context=context, chooses_layers=layers)
    chosen, need = verdict.shape, verdict.need
    assert model.need(chosen) == need
    assert verdict.fits == (not shortages(need, rooms))
    if context:
        most = model.n_ctx_train * chosen.slots
        least = min(LEAST_CELLS, model.n_ctx_train) * chosen.slots
        assert least <= chosen.context_size <= most
        if verdict.fits and chosen.context_size < most:
            cells = chosen.context_size // chosen.slots
            larger = min(most, (cells * 9 // 8 + 256) * chosen.slots)
            bigger = model.need(attrs.evolve(chosen, context_size=larger))
            assert bigger is not None
            assert shortages(bigger, rooms)
    else:
        assert chosen.context_size == context_of(shape, need)
    if layers and not set(rooms) - {HOST}:
        assert chosen.n_gpu_layers == 0
    if layers and not context and verdict.fits and layers_on_gpu(chosen, need) < need.n_layers:
        more = model.need(attrs.evolve(chosen, n_gpu_layers=chosen.n_gpu_layers + 1))
        if more is not None and "GPU0" in rooms and model.gpu is not None:
            assert shortages(more, rooms)
    if not layers:
        assert chosen.n_gpu_layers == shape.n_gpu_layers


LLAMA = Model(  # 8B, Q4_K_M
    layer_bytes=(130 * MIB,) * 32,
    output_bytes=410 * MIB,
    input_bytes=280 * MIB,
    n_embd_kv=1024,
    window=256,
    num_windowed=0,
    state_bytes=0,
    compute_bytes=260 * MIB,
    compute_bytes_a_cell=64,
    n_ctx_train=131_072,
    gpu="GPU0",
)
ASKED = LoadShape(
    context_size=131_072, slots=4, n_gpu_layers=-1, k_cache_dtype="F16", v_cache_dtype="F16"
)


def test_what_would_fit_is_found_with_few_dry_runs() -> None:
    rooms = {HOST: room(HOST, 30 * 1024 * MIB), "GPU0": room("GPU0", 12 * 1024 * MIB)}
    verdict = judged(LLAMA, ASKED, rooms)
    assert [short.device for short in verdict.shortages] == ["GPU0"]
    found = []
    for way, most in zip(ways_to_fit(verdict, rooms), (4, 1, 5, 1), strict=True):
        suggestion, runs = driven(way, LLAMA)
        assert runs <= most
        if suggestion is not None:
            found.append(suggestion)
    assert [(each.changes, each.shape) for each in found] == [
        ((Change.CONTEXT_SIZE,), attrs.evolve(ASKED, context_size=57_344)),
        ((Change.GPU_LAYERS,), attrs.evolve(ASKED, n_gpu_layers=19)),
    ]
    assert not combined_ways(verdict, rooms)[1:]
    chosen, runs = driven(judge_fit(ASKED, rooms, chooses_context=True, chooses_layers=True), LLAMA)
    assert chosen is not None
    assert chosen.fits
    assert chosen.shape == attrs.evolve(ASKED, n_gpu_layers=33, context_size=57_344)
    assert runs <= 8


def test_exactly_what_is_available_fits_and_a_byte_more_does_not() -> None:
    need = LLAMA.need(ASKED)
    assert need is not None
    exact = need.bytes_by_device["GPU0"]
    held = room("GPU0", exact - 2**30, held_bytes=2**31, reserve_bytes=2**30)
    assert held.free_after_bytes == exact + 2**30
    assert held.available_bytes == exact
    assert judged(LLAMA, ASKED, {"GPU0": held}).fits
    for less in (
        attrs.evolve(held, free_bytes=exact - 2**30 - 1),
        attrs.evolve(held, held_bytes=2**31 - 1),
        attrs.evolve(held, reserve_bytes=2**30 + 1),
        attrs.evolve(held, limit_bytes=exact - 1),
        attrs.evolve(held, free_bytes=None, limit_bytes=exact - 1),
    ):
        (short,) = judged(LLAMA, ASKED, {"GPU0": less}).shortages
        assert (short.needed_bytes, short.missing_bytes) == (exact, 1)


def test_nothing_is_refused_and_nothing_chosen_where_free_memory_is_unknown() -> None:
    for rooms in ({}, {HOST: room(HOST, None)}, {HOST: room(HOST, 1), "GPU0": room("GPU0", None)}):
        asked = attrs.evolve(ASKED, context_size=8192, n_gpu_layers=7)
        verdict = judged(LLAMA, asked, rooms, chooses_context=True, chooses_layers=True)
        assert verdict.shape.context_size == 8192
        assert verdict.shape.n_gpu_layers == (7 if "GPU0" in rooms else 0)
        assert verdict.fits == (HOST not in rooms or rooms[HOST].free_bytes is None)
        assert not [way for way in suggested(LLAMA, verdict, rooms) if Change.GPU_LAYERS in way]


def test_a_host_that_is_too_small_may_have_a_gpu_that_is_not() -> None:
    rooms = {HOST: room(HOST, 4 * 1024 * MIB), "GPU0": room("GPU0", 24 * 1024 * MIB)}
    asked = attrs.evolve(ASKED, n_gpu_layers=0, context_size=8192)
    verdict = judged(LLAMA, asked, rooms)
    assert [short.device for short in verdict.shortages] == [HOST]
    found = suggested(LLAMA, verdict, rooms)[Change.GPU_LAYERS,]
    assert found.shape.n_gpu_layers == 33


def test_one_small_change_is_not_enough_and_two_are() -> None:
    rooms = {HOST: room(HOST, 6000 * MIB)}
    on_cpu = attrs.evolve(LLAMA, gpu=None)
    least = attrs.evolve(ASKED, slots=16)
    need = on_cpu.need(attrs.evolve(least, context_size=256 * 16))
    assert need is not None
    rooms = {HOST: room(HOST, need.bytes_by_device[HOST] - 1)}
    verdict = judged(on_cpu, least, rooms)
    assert list(suggested(on_cpu, verdict, rooms)) == [(Change.CONTEXT_SIZE, Change.KV_DTYPE)]
    nothing = {HOST: room(HOST, 0)}
    assert not suggested(on_cpu, judged(on_cpu, least, nothing), nothing)
