"""The bundled model's own vocabulary through llama.cpp."""

import re
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.errors import ModelFileError
from paddler_trio.language.vocabulary import TokenizationError, Vocabulary, _cut_long_runs

steady = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def spelled(vocabulary: Vocabulary, tokens: list[int]) -> bytes:
    return b"".join(vocabulary.token_bytes(token, special=True) for token in tokens)


@steady
@given(text=st.text())
def test_tokens_spell_the_text_they_came_from(vocabulary: Vocabulary, text: str) -> None:
    tokens = vocabulary.tokenize(text, add_special=True, parse_special=False)
    assert spelled(vocabulary, tokens) == text.encode()


@pytest.mark.thorough
@pytest.mark.parametrize("character", ["a", " ", "\n", "中", "!", "\0"])
def test_a_run_of_any_length_is_tokenized_whole(vocabulary: Vocabulary, character: str) -> None:
    text = f"before {character * 50_000} after"
    tokens = vocabulary.tokenize(text, add_special=True, parse_special=True)
    assert spelled(vocabulary, tokens) == text.encode()


def test_special_tokens_are_parsed_only_when_asked(vocabulary: Vocabulary) -> None:
    parsed = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert parsed == [vocabulary.eos_token]
    assert vocabulary.is_end_of_generation(parsed[0])
    assert vocabulary.token_bytes(parsed[0], special=True) == b"<|im_end|>"
    assert vocabulary.token_bytes(parsed[0], special=False) == b""
    spelled_out = vocabulary.tokenize("<|im_end|>", add_special=False, parse_special=False)
    assert len(spelled_out) > 1
    assert not any(vocabulary.is_end_of_generation(token) for token in spelled_out)


def test_the_file_says_what_its_card_says(vocabulary: Vocabulary) -> None:
    assert vocabulary.n_tokens == 1536
    assert vocabulary.n_ctx_train == 2048
    assert vocabulary.metadata["general.architecture"] == "llama"
    assert vocabulary.bos_text == "<|endoftext|>"
    assert vocabulary.eos_text == "<|im_end|>"
    assert vocabulary.nl_text == "\n"
    assert not vocabulary.adds_bos
    assert vocabulary.control_texts == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def test_templates_are_found_by_name(vocabulary: Vocabulary) -> None:
    template = vocabulary.chat_template()
    assert template is not None
    assert "<|im_start|>" in template
    assert vocabulary.chat_template("tool_use") is None


def test_a_prompt_never_has_two_first_tokens(vocabulary: Vocabulary) -> None:
    assert vocabulary.bos_token is not None
    plain = vocabulary.tokenize("hello", add_special=False, parse_special=True)
    bos = vocabulary.bos_text
    assert vocabulary.tokenize_prompt("hello") == plain
    assert vocabulary.tokenize_prompt(f"{bos}hello") == [vocabulary.bos_token, *plain]
    assert vocabulary.tokenize_prompt(f"{bos}{bos}hello") == [vocabulary.bos_token, *plain]
    assert vocabulary.tokenize_prompt("") == []


def test_a_vocabulary_that_wants_a_first_token_gets_exactly_one(demo_model_path: Path) -> None:
    vocabulary = Vocabulary.load(demo_model_path)
    vocabulary.adds_bos = True  # as the file of many other models says
    try:
        first = [vocabulary.bos_token]
        plain = vocabulary.tokenize("hello", add_special=False, parse_special=True)
        assert vocabulary.tokenize_prompt("hello") == first + plain
        assert vocabulary.tokenize_prompt(f"{vocabulary.bos_text}hello") == first + plain
        assert vocabulary.tokenize_prompt("") == first
    finally:
        vocabulary.close()


@pytest.mark.parametrize("token", [-1, 1536, 2**31 - 1])
def test_a_token_that_does_not_exist_is_refused(vocabulary: Vocabulary, token: int) -> None:
    with pytest.raises(TokenizationError, match="1536"):
        vocabulary.token_bytes(token, special=True)
    with pytest.raises(TokenizationError, match="1536"):
        vocabulary.is_end_of_generation(token)


def test_half_a_character_is_refused_with_its_place(vocabulary: Vocabulary) -> None:
    with pytest.raises(TokenizationError, match="character 2"):
        vocabulary.tokenize("ab\ud800", add_special=False, parse_special=False)


def test_a_closed_vocabulary_says_so(demo_model_path: Path) -> None:
    vocabulary = Vocabulary.load(demo_model_path)
    vocabulary.close()
    vocabulary.close()
    with pytest.raises(ModelFileError, match="closed"):
        vocabulary.tokenize("x", add_special=False, parse_special=False)
    assert vocabulary.bos_text == "<|endoftext|>"


async def test_closing_waits_for_nobody_and_takes_nothing_from_those_inside(
    demo_model_path: Path,
) -> None:
    vocabulary = Vocabulary.load(demo_model_path)
    with vocabulary.open_handle():
        await trio.to_thread.run_sync(vocabulary.close)
        with pytest.raises(ModelFileError, match="closed"):
            vocabulary.tokenize("x", add_special=False, parse_special=False)


def test_a_file_that_is_missing_or_no_model_is_refused_by_name(
    tmp_path: Path, demo_model_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf does not exist"):
        Vocabulary.load(tmp_path / "nowhere.gguf")
    with pytest.raises(ModelFileError, match="does not exist"):
        Vocabulary.load(tmp_path)
    whole = demo_model_path.read_bytes()
    for name, content in {
        "empty": b"",
        "text": b"hello",
        "magic": whole[:4],
        "header": whole[:200],
        "half": whole[: len(whole) // 2],
    }.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=f"{name}.gguf"):
            Vocabulary.load(path)


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "é", " ", "\n", "a b"]), st.integers(0, 9000)), max_size=4
    )
)
def test_no_part_has_a_run_that_is_dangerous(runs: list[tuple[str, int]]) -> None:
    text = "".join(characters * times for characters, times in runs)
    parts = _cut_long_runs(text)
    assert "".join(parts) == text
    assert not any(re.search(r"\S{4097}|\s{4097}", part) for part in parts)
