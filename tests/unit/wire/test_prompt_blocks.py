"""The blocks of a prompt: what they have in common is what the prompts begin with."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    ConversationMessage,
)
from paddler_trio.wire.prompt_blocks import BLOCK_BYTES, IMAGE_BYTES, PromptBlocks
from paddler_trio.wire.trio.request_frame import encode_work
from paddler_trio.wire.trio.work import (
    ConversationPrompt,
    Embed,
    Generate,
    TextInput,
    TextPrompt,
    TokenPrompt,
    Work,
)

SYSTEM = {"role": "system", "content": "Answer in one word. " * 100}
HELLO = {"role": "user", "content": "Hello there, " * 40}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks it up. " * 40}}


def blocks(work: Work) -> PromptBlocks:
    return encode_work(work).prompt


def chat(
    *messages: Mapping[str, object], tools: Sequence[Mapping[str, object]] = (), salt: str = ""
) -> PromptBlocks:
    prompt = ConversationPrompt(messages=messages, tools=tuple(tools))
    return blocks(Generate(prompt=prompt, cache_salt=salt))


def shared(one: PromptBlocks, other: PromptBlocks) -> int:
    """How many bytes the two have in common."""
    num = 0
    for each, its in zip(one.hashes, other.hashes, strict=False):
        if each != its:
            break
        num += 1
    return one.covered_bytes(num)


def test_the_next_turn_begins_with_the_turn_before() -> None:
    first = chat(SYSTEM, HELLO)
    second = chat(SYSTEM, HELLO, {"role": "assistant", "content": "Hi."}, HELLO)
    assert shared(first, second) == first.covered_bytes(len(first.hashes))
    assert first.size_bytes - shared(first, second) < BLOCK_BYTES


@pytest.mark.parametrize(
    "other",
    [
        chat({**SYSTEM, "content": f"X{SYSTEM['content']}"}, HELLO),
        chat(SYSTEM, HELLO, salt="of another"),
        chat(SYSTEM, HELLO, tools=[TOOL]),
    ],
    ids=["another system prompt", "another salt", "with tools"],
)
def test_what_differs_at_its_beginning_shares_nothing(other: PromptBlocks) -> None:
    assert shared(chat(SYSTEM, HELLO), other) == 0
    assert other.hashes


def test_tools_come_before_the_messages() -> None:
    one, other = chat(SYSTEM, HELLO, tools=[TOOL]), chat(HELLO, tools=[TOOL])
    assert 0 < shared(one, other) <= len(json.dumps([TOOL]))
    assert shared(one, chat(SYSTEM, HELLO, HELLO, tools=[TOOL])) > len(str(SYSTEM))


def test_other_template_variables_may_change_everything() -> None:
    prompt = ConversationPrompt(messages=(SYSTEM, HELLO), template_kwargs={"effort": "high"})
    assert shared(chat(SYSTEM, HELLO), blocks(Generate(prompt=prompt))) == 0


def test_sampling_changes_nothing() -> None:
    prompt = ConversationPrompt(messages=(SYSTEM, HELLO))
    one, other = Generate(prompt=prompt, max_tokens=3), Generate(prompt=prompt, stop=("x",))
    assert blocks(one).hashes == blocks(other).hashes


@pytest.mark.parametrize("kind", ["image/png", "audio"])
def test_an_image_or_a_sound_is_its_content(kind: str) -> None:
    def seen(fill: int, then: str) -> PromptBlocks:
        url = f"data:{kind};base64," + base64.b64encode(bytes([fill]) * 300_000).decode()
        image = {"type": "image_url", "image_url": {"url": url}}
        words = {"type": "text", "text": then}
        return chat(SYSTEM, {"role": "user", "content": [image, words]})

    assert seen(1, "What is this?").size_bytes < len(str(SYSTEM)) + IMAGE_BYTES + 200
    same = shared(seen(1, "a" * 2000), seen(1, "b" * 2000))
    assert same > len(str(SYSTEM)) + IMAGE_BYTES - 2 * BLOCK_BYTES
    assert shared(seen(1, "a"), seen(2, "a")) < len(str(SYSTEM)) + BLOCK_BYTES


@pytest.mark.parametrize(
    "work",
    [
        Generate(prompt=TextPrompt(text="text " * 200)),
        Generate(prompt=TokenPrompt(tokens=tuple(range(400)))),
        ContinueFromRawPromptParams(raw_prompt="text " * 200, max_tokens=3),
        ContinueFromConversationHistoryParams(
            True, (ConversationMessage("user", "text " * 200),), False, 3
        ),
    ],
    ids=lambda work: type(getattr(work, "prompt", work)).__name__,
)
def test_every_generation_has_blocks(work: Work) -> None:
    assert 3 <= len(blocks(work).hashes) <= 8
    assert 0 <= blocks(work).size_bytes - blocks(work).covered_bytes(len(blocks(work).hashes)) < 256


def test_what_uses_no_cache_has_none() -> None:
    text = "text " * 200
    assert not blocks(Generate(prompt=TextPrompt(text=text), reuse_prefix=False)).hashes
    assert not blocks(Embed(inputs=(TextInput(text=text),))).hashes


@given(st.integers(0, 3_000_000))
def test_a_long_prompt_is_known_within_an_eighth(size: int) -> None:
    prompt = blocks(Generate(prompt=TextPrompt(text="x" * size)))
    rest = prompt.size_bytes - prompt.covered_bytes(len(prompt.hashes))
    assert 0 <= rest <= max(BLOCK_BYTES, size // 8)
    assert len(prompt.hashes) < 400


def test_eight_kilobytes_are_hashed_in_no_time() -> None:
    from paddler_trio.wire.prompt_blocks import prompt_blocks

    work = Generate(prompt=ConversationPrompt(messages=({"role": "user", "content": "x" * 8192},)))
    body = encode_work(work).body
    took_s = []
    for _ in range(50):
        began_s = time.perf_counter()
        prompt_blocks(work, body)
        took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < 50e-6
