"""Sequences choose adapters: each is computed as by an engine that has only these."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from engine_client import GREEDY, LOAD, STORY, Engine, running

from lora_adapters import write_lora
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import (
    AdapterScale,
    LoadFailed,
    LoadModel,
    Ready,
    SampledToken,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings

TOKENS = 24
PROMPT = (
    "<|im_start|>system\n"
    + "You tell short stories of animals that live near a river and help each other. " * 5
    + "<|im_end|>\n"
    + STORY
)
"""Longer than what is worth being copied, and stored."""
NEAR_TIE = 0.02
"""Of two log probabilities."""
ENDLESS = attrs.evolve(GREEDY, ignore_eos=True)
CHOICES: dict[str, list[AdapterScale]] = {
    "plain": [],
    "first": [AdapterScale(0, 1.0)],
    "second": [AdapterScale(1, 1.0)],
    "less": [AdapterScale(1, 0.25)],
    "both": [AdapterScale(0, 0.5), AdapterScale(1, 0.5)],
}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("adapters")
    return [str(write_lora(folder / f"{seed}.gguf", BUNDLED_MODEL, seed=seed)) for seed in (1, 2)]


@pytest.fixture(scope="module")
def alone(vocabulary: Vocabulary, adapters: list[str]) -> dict[str, list[SampledToken]]:
    """Return what engines say that have these adapters always, and no others."""
    said = {}
    for name, chosen in CHOICES.items():
        lora = [f"{adapters[each.place]}={each.scale}" for each in chosen]
        with running(vocabulary) as engine:
            loaded(engine, attrs.evolve(LOAD, settings=EngineSettings(lora=lora)))
            engine.start(1, PROMPT, max_tokens=TOKENS, sampling=ENDLESS, logprobs=2)
            engine.until_ended(1)
            said[name] = engine.reports[1]
    texts = [tuple(each.token for each in tokens) for tokens in said.values()]
    assert len(set(texts)) == len(CHOICES), texts
    return said


def is_same(said: list[SampledToken], alone: list[SampledToken]) -> bool:
    """Return whether both say the same, as far as it does not depend on how numbers are rounded:
    other passes add them up in another order."""
    for one, other in zip(said, alone, strict=True):
        if one.token != other.token:
            assert other.logprobs is not None
            best, second = other.logprobs.values[1:3]
            return one.token == other.logprobs.tokens[2] and best - second < NEAR_TIE
    return True


def loaded(engine: Engine, load: LoadModel) -> None:
    ready = engine.load(load)
    assert isinstance(ready, Ready), ready


def ask(engine: Engine, key: int, choice: str, **more: object) -> None:
    engine.start(key, PROMPT, max_tokens=TOKENS, sampling=ENDLESS, adapters=CHOICES[choice], **more)


@pytest.mark.parametrize("unified", [False, True])
def test_all_choices_at_once_say_what_each_says_alone(
    vocabulary: Vocabulary, adapters: list[str], alone: dict[str, list[SampledToken]], unified: bool
) -> None:
    """They are more than slots, and have one prompt: no cells of one serve another."""
    settings = EngineSettings(unified=unified, prefix_store_bytes=16 * 2**20)
    load = attrs.evolve(LOAD, adapters=adapters, settings=settings)
    with running(vocabulary) as engine:
        loaded(engine, load)
        order = [*CHOICES, *reversed(CHOICES), *CHOICES]
        for key, choice in enumerate(order, 1):
            ask(engine, key, choice)
        engine.until_ended(*range(1, 1 + len(order)))
        for key, choice in enumerate(order, 1):
            assert is_same(engine.reports[key], alone[choice]), choice
        assert any(ending.num_cached_tokens for ending in engine.endings.values())


def test_cells_serve_those_with_equal_adapters_only(
    vocabulary: Vocabulary, adapters: list[str], alone: dict[str, list[SampledToken]]
) -> None:
    settings = EngineSettings(prefix_store_bytes=16 * 2**20)
    with running(vocabulary) as engine:
        loaded(engine, attrs.evolve(LOAD, adapters=adapters, settings=settings))
        for key, choice in enumerate(["first", "second", "plain", "second"], 1):
            ask(engine, key, choice)
            engine.until_ended(key)
            assert is_same(engine.reports[key], alone[choice])
        cached = [engine.endings[key].num_cached_tokens for key in range(1, 5)]
        assert cached[:3] == [0, 0, 0]
        assert cached[3] > 0


def test_a_salt_cannot_stand_for_adapters(
    vocabulary: Vocabulary, adapters: list[str], alone: dict[str, list[SampledToken]]
) -> None:
    stat = Path(adapters[0]).stat()
    key_of_first = repr(((adapters[0], stat.st_size, stat.st_mtime_ns, 1.0),))
    with running(vocabulary) as engine:
        loaded(engine, attrs.evolve(LOAD, adapters=adapters))
        ask(engine, 1, "first")
        engine.until_ended(1)
        ask(engine, 2, "plain", salt=key_of_first)
        ask(engine, 3, "plain", salt="()")
        engine.until_ended(2, 3)
        assert is_same(engine.reports[2], alone["plain"])
        assert is_same(engine.reports[3], alone["plain"])
        assert engine.endings[2].num_cached_tokens == 0


def test_adapters_beside_one_that_always_counts(
    vocabulary: Vocabulary, adapters: list[str], alone: dict[str, list[SampledToken]]
) -> None:
    settings = EngineSettings(lora=[f"{adapters[0]}=0.5"])
    with running(vocabulary) as engine:
        loaded(engine, attrs.evolve(LOAD, adapters=adapters[1:], settings=settings))
        engine.start(
            1, PROMPT, max_tokens=TOKENS, sampling=ENDLESS, adapters=[AdapterScale(0, 0.5)]
        )
        engine.until_ended(1)
        assert is_same(engine.reports[1], alone["both"])


def test_drafts_change_no_answer_beside_other_adapters(
    vocabulary: Vocabulary, adapters: list[str], alone: dict[str, list[SampledToken]]
) -> None:
    settings = EngineSettings(max_drafts=4, draft_model=str(BUNDLED_MODEL))
    with running(vocabulary) as engine:
        loaded(engine, attrs.evolve(LOAD, adapters=adapters, settings=settings))
        for key, choice in enumerate(CHOICES, 1):
            ask(engine, key, choice)
        engine.until_ended(*range(1, 1 + len(CHOICES)))
        for key, choice in enumerate(CHOICES, 1):
            assert is_same(engine.reports[key], alone[choice]), choice


def test_an_adapter_that_there_is_not_is_refused(
    vocabulary: Vocabulary, adapters: list[str]
) -> None:
    with running(vocabulary) as engine:
        loaded(engine, attrs.evolve(LOAD, adapters=adapters))
        engine.start(1, STORY, adapters=[AdapterScale(2, 1.0)])
        engine.until_ended(1)
        assert engine.endings[1].reason == "refused"
        assert "there are 2 adapters" in engine.endings[1].detail


@pytest.mark.parametrize("path", ["/nowhere.gguf", str(BUNDLED_MODEL)])
def test_what_is_no_adapter_fails_the_load(vocabulary: Vocabulary, path: str) -> None:
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, adapters=[path]))
        assert isinstance(failed, LoadFailed)
        assert path in failed.reason
