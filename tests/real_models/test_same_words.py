"""What trained models say at temperature 0: the words, numbers and chances that llama-server tells.

Both compute with the same code and the same kind of cache, but in batches of other shapes: a logit
may differ by thousandths. Where the two likeliest tokens are nearer than that, either may be said,
and what follows is another text; it is compared up to there. So it is up to a token that ends
within a character, which llama-server reports together with the next ones and a fleet by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import gguf
import pytest
from side_by_side import Pair, require, side_by_side
from trained_models import SMOLLM2

TIE = 0.05
"""In logits."""
NEAR = 0.01
"""Of log probabilities."""
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 32, "n_probs": 3, "return_tokens": True}

PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "Q: What is the largest planet of the solar system?\nA:",
    "Die Hauptstadt von Deutschland",
    "日本の首都は",
    "naïve café 🤗 ",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit. " * 20,
]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada!"},
        {"role": "user", "content": "What is my name?"},
    ],
    [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Count to"}, {"type": "text", "text": "five."}],
        }
    ],
    [
        {"role": "user", "content": "List three colours."},
        {"role": "assistant", "content": "1. Red\n2."},
    ],
]
PAIRS = ["smollm2", "gemma"]
FEW = 4
"""Of what is asked of the slower model."""


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Pair:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Pair)
    return found


def asked_of_each(questions: list[Any]) -> list[tuple[str, Any]]:
    return [("smollm2", each) for each in questions] + [("gemma", each) for each in questions[:FEW]]


def decided(entries: list[dict[str, Any]]) -> int:
    """How many tokens from the first on are the likeliest by more than a tie."""

    def is_clear(entry: dict[str, Any]) -> bool:
        first, second, *_ = entry["top_logprobs"]
        return "\ufffd" not in entry["token"] and float(first["logprob"] - second["logprob"]) > TIE

    return len(list(takewhile(is_clear, entries)))


def assert_same_chances(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    clear = min(decided(ours), decided(theirs))
    for mine, other in zip(ours[:clear], theirs[:clear], strict=True):
        assert (mine["id"], mine["token"], mine["bytes"]) == (
            other["id"],
            other["token"],
            other["bytes"],
        )
        assert mine["logprob"] == pytest.approx(other["logprob"], abs=NEAR)
        told = {each["id"]: each["logprob"] for each in mine["top_logprobs"]}
        for each in other["top_logprobs"]:
            least = min(told.values())
            assert told.get(each["id"], least) == pytest.approx(each["logprob"], abs=NEAR)


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
@pytest.mark.parametrize("text", [*PROMPTS, "", " ", "<|im_start|>user\nHi<|im_end|>\n", "<bos>a"])
def test_texts_are_the_same_tokens(pair: Pair, text: str) -> None:
    for flags in ({}, {"add_special": True}, {"parse_special": False}, {"with_pieces": True}):
        ours, theirs = pair.ask("/tokenize", content=text, **flags)
        assert ours == theirs, flags


@pytest.mark.parametrize(("pair", "prompt"), asked_of_each(PROMPTS), indirect=["pair"])
def test_texts_are_continued_alike(pair: Pair, prompt: str) -> None:
    ours, theirs = pair.ask("/completion", prompt=prompt, **GREEDY)
    assert ours["tokens_evaluated"] == theirs["tokens_evaluated"]
    mine, other = ours["completion_probabilities"], theirs["completion_probabilities"]
    assert_same_chances(mine, other)
    clear = min(decided(mine), decided(other))
    assert ours["tokens"][:clear] == theirs["tokens"][:clear]
    if clear == len(theirs["tokens"]):
        for name in ("content", "tokens", "tokens_predicted", "stop_type", "stopping_word"):
            assert ours[name] == theirs[name], name
        for name in ("truncated", "has_new_line", "stop"):
            assert ours[name] == theirs[name], name


@pytest.mark.parametrize(("pair", "messages"), asked_of_each(CONVERSATIONS), indirect=["pair"])
def test_conversations_are_answered_alike(pair: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = pair.ask("/apply-template", messages=messages)
    assert ours["prompt"] == theirs["prompt"]
    wishes: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "logprobs": True}
    ours, theirs = pair.ask("/v1/chat/completions", messages=messages, top_logprobs=3, **wishes)
    assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
    (mine,), (other,) = ours["choices"], theirs["choices"]
    told, judged = mine["logprobs"]["content"], other["logprobs"]["content"]
    assert_same_chances(told, judged)
    if min(decided(told), decided(judged)) == len(judged):
        assert mine["message"]["content"] == other["message"]["content"]
        assert mine["finish_reason"] == other["finish_reason"]
        assert ours["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"]


@pytest.mark.parametrize("stop", [[" the"], ["\n"], [",", "."], ["ow"], ["no such text"]])
def test_the_same_texts_end_an_answer(smollm2: Pair, stop: list[str]) -> None:
    for prompt in PROMPTS[:4]:
        ours, theirs = smollm2.ask("/completion", prompt=prompt, stop=stop, **GREEDY)
        mine, other = ours["completion_probabilities"], theirs["completion_probabilities"]
        if min(decided(mine), decided(other)) < len(other):
            continue
        for name in ("content", "stop_type", "stopping_word", "tokens_predicted"):
            assert ours[name] == theirs[name], (prompt, name)


@pytest.mark.parametrize(
    "wishes",
    [
        {"repeat_penalty": 1.3},
        {"repeat_penalty": 1.3, "repeat_last_n": 256},
        {"presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"dry_multiplier": 0.8, "dry_allowed_length": 2},
        {"logit_bias": [[" Paris", -100]]},
        {"ignore_eos": True},
    ],
)
def test_what_lowers_logits_lowers_them_alike(smollm2: Pair, wishes: dict[str, Any]) -> None:
    for prompt in PROMPTS[:4]:
        ours, theirs = smollm2.ask("/completion", prompt=prompt, **(GREEDY | wishes))
        assert ours["content"] == theirs["content"], prompt


GAPS: list[dict[str, Any]] = [
    {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n\nprint(add(1, 2))\n"},
    {"input_prefix": "", "input_suffix": "}\n"},
    {
        "input_prefix": "from helpers import ",
        "input_suffix": "\n",
        "input_extra": [{"filename": "helpers.py", "text": "def greet(name):\n    pass\n"}],
    },
]
GAP_TOKENS = {"pre": 7, "suf": 8, "mid": 9}
"""Control tokens that SmolLM2 has for the stars and issues of a repository: it has none of its own
for gaps, but both servers have to lay a prompt out with those that a file names."""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """SmolLM2 with tokens for gaps."""
    path = tmp_path_factory.mktemp("gaps") / "gaps.gguf"
    reader = gguf.GGUFReader(require(SMOLLM2))
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != gguf.Keys.General.ARCHITECTURE:
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for part, token in GAP_TOKENS.items():
        writer.add_uint32(f"tokenizer.ggml.fim_{part}_token_id", token)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # a slot that is no larger than a batch has no room for other texts
    with side_by_side(path, "--batch-size", "512", parameters={"n_batch": 512}) as pair:
        yield pair


@pytest.mark.parametrize("gap", GAPS)
def test_gaps_are_filled_alike(gaps: Pair, gap: dict[str, Any]) -> None:
    """llama-server names a repository where there are no other texts, too, and otherwise."""
    wishes = GREEDY | {"n_predict": 16}
    ours, theirs = gaps.ask("/infill", **gap, **wishes)
    prompts = [
        body["prompt"].replace(f"<reponame>{name}\n", "")
        for body, name in ((ours, "repository"), (theirs, "myproject"))
    ]
    assert prompts[0] == prompts[1]
    if "input_extra" in gap:
        return  # read again as one text, its parts are other tokens
    same = gaps.theirs.post("/completion", json={"prompt": ours["prompt"], **wishes}).json()
    assert ours["tokens_evaluated"] == same["tokens_evaluated"]
    assert_same_chances(ours["completion_probabilities"], same["completion_probabilities"])
