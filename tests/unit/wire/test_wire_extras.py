"""Extras: strict, harmless when empty, and named by a digest otherwise."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    HuggingFaceModel,
    LocalToAgent,
    applicable_state,
    state_digest,
)
from paddler_trio.wire.scalars import float32
from paddler_trio.wire.trio.adapters import Adapter
from paddler_trio.wire.trio.desired_state_extras import (
    NO_EXTRAS,
    Automatic,
    EngineOverrides,
    ExtendedDesiredState,
    Extras,
    FlashAttention,
    Markers,
    RopeScaling,
    SplitMode,
    extended_digest,
)
from paddler_trio.wire.trio.trio_link import Want, parse_extension, render_extension

STATE = attrs.evolve(BalancerDesiredState.default(), model=LocalToAgent("/m.gguf"))
AGENT_STATE = applicable_state(STATE)

texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=9)
counts = st.integers(0, 2**32 - 1)
positive = st.floats(1, 1e6, width=32).map(float32)
several = st.lists(texts, max_size=3).map(tuple)


def perhaps(**values: st.SearchStrategy[object]) -> dict[str, st.SearchStrategy[object]]:
    return {name: st.none() | value for name, value in values.items()}


wishes = st.builds(
    EngineOverrides,
    **perhaps(
        unified=st.booleans(),
        target_pass_ms=positive,
        stream_interval_ms=st.floats(0, 1000, width=32).map(float32),
        prefix_store_bytes=counts,
        max_drafts=st.integers(0, 64),
        draft_model=texts,
        flash_attention=st.sampled_from(FlashAttention),
        split_mode=st.sampled_from(SplitMode),
        main_gpu=st.integers(0, 7),
        tensor_split=st.lists(positive, max_size=3).map(tuple),
        tensor_overrides=several,
        offload_kqv=st.booleans(),
        use_mmap=st.booleans(),
        use_mlock=st.booleans(),
        lora=several,
        rope_scaling=st.sampled_from(RopeScaling),
        rope_freq_base=positive,
        rope_freq_scale=positive,
        yarn_ext_factor=positive,
        yarn_attn_factor=positive,
        yarn_beta_fast=positive,
        yarn_beta_slow=positive,
        yarn_orig_ctx=counts,
        swa_full=st.booleans(),
        rpc=several,
        image_cache_bytes=counts,
    ),
)
markers = st.builds(
    Markers,
    **perhaps(
        reasoning_open=texts,
        reasoning_close=st.just("") | texts,
        tool_open=st.just("") | texts,
        tool_close=texts,
    ),
)
automatic = st.builds(Automatic, context_size=st.booleans(), n_gpu_layers=st.booleans())
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,9}", fullmatch=True)
adapters = st.lists(
    st.builds(
        Adapter,
        name=names,
        source=st.builds(LocalToAgent, texts) | st.builds(HuggingFaceModel, texts, texts, texts),
        scale=st.floats(-100, 100, width=32).map(float32),
    ),
    max_size=4,
    unique_by=lambda adapter: adapter.name,
).map(tuple)
extras = st.builds(
    Extras,
    engine=wishes,
    markers=st.none() | markers,
    auto=st.none() | automatic,
    adapters=adapters,
)


def test_every_engine_setting_can_be_wished() -> None:
    names = [field.name for field in attrs.fields(EngineSettings)]
    assert sorted(field.name for field in attrs.fields(EngineOverrides)) == sorted(names)


@given(extras)
def test_extras_survive_a_file_and_the_link(wished: Extras) -> None:
    both = ExtendedDesiredState(state=STATE, extras=wished)
    assert structure(loads(dumps(unstructure(both))), ExtendedDesiredState) == both
    frame = loads(render_extension(Want(AGENT_STATE, wished)))
    assert isinstance(frame, dict)
    assert parse_extension(frame["Trio"]) == Want(AGENT_STATE, wished)


@given(extras, extras)
def test_equal_wishes_have_equal_digests_and_others_do_not(one: Extras, other: Extras) -> None:
    same = one == other or (one.is_empty and other.is_empty)
    digests = extended_digest(AGENT_STATE, one), extended_digest(AGENT_STATE, other)
    assert (digests[0] == digests[1]) == same
    assert (digests[0] == state_digest(AGENT_STATE)) == one.is_empty


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"engine": {}},
        {"engine": {"lora": None}, "markers": {}},
        {"auto": {}},
        {"auto": {"context_size": False}},
    ],
)
def test_to_wish_nothing_is_to_have_no_extras(nothing: object) -> None:
    wished = structure(nothing, Extras)
    assert wished.is_empty
    assert extended_digest(AGENT_STATE, wished) == state_digest(AGENT_STATE)


def test_an_empty_list_is_a_wish() -> None:
    assert not structure({"engine": {"lora": []}}, Extras).is_empty


@given(wishes)
def test_what_is_not_wished_stays_the_agents_own(wished: EngineOverrides) -> None:
    own = EngineSettings(max_drafts=3, lora=["/own.gguf"], rope_scaling="linear", unified=True)
    settings = wished.over(own)
    for field in attrs.fields(EngineSettings):
        wish = getattr(wished, field.name)
        expected = getattr(own, field.name) if wish is None else wish
        if wish is RopeScaling.MODEL:
            expected = ""
        if isinstance(expected, tuple):
            expected = list(expected)
        assert getattr(settings, field.name) == expected
        assert type(getattr(settings, field.name)) in (bool, int, float, str, list, type(None))


def test_no_wishes_change_no_settings() -> None:
    own = EngineSettings(max_drafts=3, draft_model="/d.gguf")
    assert NO_EXTRAS.engine.over(own) == own


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"engine": {"turbo": True}}, ["unknown field 'turbo'", "$.engine"]),
        ({"motor": {}}, ["unknown field 'motor'"]),
        ({"engine": {"unified": 1}}, ["true or false, got 1", "$.engine.unified"]),
        ({"engine": {"max_drafts": 65}}, ["0..64, got 65", "$.engine.max_drafts"]),
        ({"engine": {"prefix_store_bytes": -1}}, ["got -1", "$.engine.prefix_store_bytes"]),
        ({"engine": {"target_pass_ms": 0.5}}, ["is 0.5, must be at least 1", "target_pass_ms"]),
        (
            {"engine": {"stream_interval_ms": -1}},
            ["is -1, must be at least 0", "stream_interval_ms"],
        ),
        ({"engine": {"stream_interval_ms": 1001}}, ["is 1001, must be at most 1000"]),
        ({"engine": {"yarn_beta_fast": -2}}, ["is -2, must be at least -1", "yarn_beta_fast"]),
        ({"engine": {"tensor_split": [1, -1]}}, ["is -1", "at least 0", "tensor_split[1]"]),
        ({"engine": {"flash_attention": "maybe"}}, ["'maybe'", "auto", "$.engine.flash_attention"]),
        ({"engine": {"rope_scaling": "cubic"}}, ["'cubic'", "yarn", "$.engine.rope_scaling"]),
        ({"engine": {"lora": [""]}}, ["0 characters", "1 to 4096", "$.engine.lora[0]"]),
        ({"engine": {"rpc": ["a"] * 129}}, ["129 entries", "limit is 128", "$.engine.rpc"]),
        ({"engine": {"draft_model": "a\0b"}}, ["no NUL", "$.engine.draft_model"]),
        (
            {"markers": {"tool_open": "<" * 257}},
            ["257 characters", "limit is 256", "$.markers.tool_open"],
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_name_value_and_limit(
    body: object, words: list[str]
) -> None:
    with pytest.raises(WireError) as refused:
        structure(body, Extras)
    for word in words:
        assert word in str(refused.value)
