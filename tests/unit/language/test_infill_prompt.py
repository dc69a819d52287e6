"""The prompt of a gap: laid out and cut, and no text in it becomes a control token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infill_models import FILES, GAP, write_infill_model
from paddler_trio.language.infill import Gap, InfillRoom, Others, infill_tokens_of, near
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.vocabulary import InfillTokens, Vocabulary
from paddler_trio.wire.trio.work import InfillPrompt, OtherText

tokens = st.lists(st.integers(0, 9), max_size=40)
MARKED = [*GAP, *FILES, "<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PARTS = [*MARKED, "<|", "fim_", "middle", "|>", "\ufdd0", " ", "\n", "x = 1", "é"]
"""What a text is made of that would like to be more than one."""
texts = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
prompts = st.builds(
    InfillPrompt,
    prefix=texts,
    suffix=texts,
    middle=texts,
    others=st.lists(st.builds(OtherText, text=texts, filename=texts), max_size=3).map(tuple),
)


def opened(path: Path, **options: bool) -> Vocabulary:
    return Vocabulary.load(write_infill_model(path, **options))


@pytest.fixture(scope="module", params=[False, True], ids=["control", "user defined"])
def coder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Vocabulary]:
    """The vocabulary of a model that fills gaps."""
    path = tmp_path_factory.mktemp("infill") / "coder.gguf"
    vocabulary = opened(path, as_user_defined=request.param)
    yield vocabulary
    vocabulary.close()


def spelled(vocabulary: Vocabulary, prompt: InfillPrompt, **sizes: int) -> str:
    sizes = {"slot_cells": 1024, "n_batch": 256} | sizes
    found = infill_tokens_of(prompt, vocabulary, **sizes)
    return b"".join(vocabulary.token_bytes(token, special=True) for token in found).decode()


# ---------------------------------------------------------------------------------- what is cut


@given(tokens, tokens, tokens, st.integers(0, 100))
def test_a_gap_keeps_what_is_near_it(
    prefix: list[int], suffix: list[int], middle: list[int], room: int
) -> None:
    cut = Gap(prefix, suffix, middle).cut(room)
    sizes = [len(cut.prefix), len(cut.suffix), len(cut.middle)]
    assert [*cut.prefix] == prefix[len(prefix) - sizes[0] :]
    assert [*cut.suffix] == suffix[: sizes[1]]
    assert [*cut.middle] == middle[len(middle) - sizes[2] :]
    whole = len(prefix) + len(suffix) + len(middle)
    assert sum(sizes) <= room
    if len(middle) <= room // 2:
        assert sum(sizes) == min(room, whole), "no room is left while something was cut"


def test_a_long_prefix_and_a_long_suffix_share_three_to_one() -> None:
    cut = Gap(range(1000), range(1000), range(100)).cut(500)
    assert [len(cut.prefix), len(cut.suffix), len(cut.middle)] == [300, 100, 100]


@given(tokens, st.lists(st.tuples(tokens, tokens), max_size=4), tokens, st.integers(0, 120))
def test_other_texts_keep_the_last_ones(
    before: list[int], each: list[tuple[list[int], list[int]]], after: list[int], room: int
) -> None:
    cut = Others(before, each, after).cut(room)
    assert len(cut) <= room
    if cut:
        assert cut[: len(before)] == before
        assert cut[len(cut) - len(after) :] == after
        kept = cut[len(before) : len(cut) - len(after)]
        assert kept, "there is no heading without a text"


def test_a_text_that_does_not_fit_whole_keeps_its_heading_and_its_end() -> None:
    others = Others([1], [([2], [3] * 5), ([4], [5, 6, 7]), ([8], [9])], [0])
    assert others.cut(7) == [1, 4, 6, 7, 8, 9, 0]
    assert others.cut(2) == []


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_quarter_of_the_slot_is_the_answers(slot_cells: int, n_batch: int) -> None:
    room = InfillRoom.of(slot_cells=slot_cells, n_batch=n_batch)
    assert room.window <= room.whole < slot_cells
    assert slot_cells - room.whole == max(1, slot_cells // 4)


@given(prompts, st.integers(1, 40))
def test_only_what_may_be_kept_is_read(prompt: InfillPrompt, most: int) -> None:
    read = near(prompt, most)
    assert read.prefix == prompt.prefix[-most:]
    assert read.suffix == prompt.suffix[:most]
    assert read.middle == prompt.middle[-most:]
    headed = [other for other in prompt.others if other.text]
    kept = headed[len(headed) - len(read.others) :]
    assert [other.filename for other in read.others] == [other.filename for other in kept]
    read_chars = "".join(f"{other.filename}\n{other.text}" for other in read.others[1:])
    assert all(
        other.text == whole.text for other, whole in zip(read.others[1:], kept[1:], strict=True)
    )
    assert len(read_chars) < most + len(read.others)
    if len(read.others) < len(headed):
        left_out = headed[-len(read.others) - 1]
        beside = sum(len(other.filename) + len(other.text) for other in read.others)
        assert beside + len(left_out.filename) >= most, "its text might have been kept"
    assert near(prompt, 0) == prompt, "tokens of this vocabulary may stand for any number"


def test_long_texts_are_not_read_whole(coder: Vocabulary) -> None:
    """The tokens are those of the whole texts, and there is a limit to what is turned into them."""
    words = "".join(f" word{number}" for number in range(5000))
    prompt = InfillPrompt(prefix=words, suffix=words, others=(OtherText(text=words),))
    found = infill_tokens_of(prompt, coder, slot_cells=200, n_batch=100)
    gap = Gap(coder.tokenize_text(words), coder.tokenize_text(words), ()).cut(97)
    assert found[-100:] == gap.marked(coder.infill_tokens)
    assert len(found) == 150
    assert len(near(prompt, 150 * coder.longest_token_chars).prefix) < len(words) // 10


def test_names_are_not_read_that_no_text_can_follow(coder: Vocabulary) -> None:
    """A name that is never read may even be one that cannot be."""
    unreadable = OtherText(text="far", filename="\ud800" * 4096)
    long, near_by = OtherText(text="x", filename="n" * 4096), OtherText(text="near", filename="a")
    prompt = InfillPrompt(prefix="x", suffix="y", others=(unreadable, long, near_by))
    found = spelled(coder, prompt, slot_cells=200, n_batch=100)
    assert found.startswith("<|repo_name|>repository\n<|file_sep|>a\nnear<|file_sep|>")


def test_a_model_without_files_keeps_texts_however_long_their_names_are(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(write_infill_model(tmp_path / "gaps.gguf", GAP))
    others = (OtherText(text="far"), OtherText(text="near", filename="n" * 4096))
    prompt = InfillPrompt(prefix="x", suffix="y", others=others)
    found = spelled(vocabulary, prompt, slot_cells=200, n_batch=100)
    assert found.index("far") < found.index("near") < found.index("<|fim_prefix|>")
    vocabulary.close()


# ------------------------------------------------------------------------------- what it becomes


def test_only_the_gap(coder: Vocabulary) -> None:
    prompt = InfillPrompt(prefix="def one():\n", suffix="\n\ntwo()", middle="    ")
    assert spelled(coder, prompt) == (
        "<|fim_prefix|>def one():\n<|fim_suffix|>\n\ntwo()<|fim_middle|>    "
    )
    assert spelled(coder, InfillPrompt(prefix="", suffix="")) == "".join(GAP)


def test_other_texts_stand_before_it_as_files(coder: Vocabulary) -> None:
    others = OtherText(text="a = 1\n", filename="a.py"), OtherText(text=""), OtherText(text="b")
    prompt = InfillPrompt(prefix="x", suffix="y", others=others)
    assert spelled(coder, prompt) == (
        "<|repo_name|>repository\n<|file_sep|>a.py\na = 1\n<|file_sep|>tmp\nb"
        "<|file_sep|>file\n<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>"
    )
    assert spelled(coder, prompt, n_batch=1024) == spelled(
        coder, InfillPrompt(prefix="x", suffix="y")
    ), "the slot has no room beside the batch"


def test_a_model_without_files_gets_snippets(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(write_infill_model(tmp_path / "gap.gguf", GAP))
    try:
        prompt = InfillPrompt(prefix="x", suffix="y", others=(OtherText(text="a = 1"),))
        assert spelled(vocabulary, prompt) == (
            "\n\n--- snippet ---\n\na = 1<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>"
        )
    finally:
        vocabulary.close()


def test_bos_stands_first_and_is_counted(tmp_path: Path) -> None:
    vocabulary = opened(tmp_path / "bos.gguf")
    vocabulary.adds_bos = True  # as the file of many other models says
    try:
        prompt = InfillPrompt(prefix="x " * 100, suffix="y")
        found = infill_tokens_of(prompt, vocabulary, slot_cells=40, n_batch=40)
        assert len(found) == 30
        assert found[:2] == [vocabulary.bos_token, vocabulary.infill_tokens.prefix]
    finally:
        vocabulary.close()


@given(prompt=prompts, slot_cells=st.integers(5, 400), n_batch=st.integers(4, 400))
def test_it_always_fits_and_its_markers_are_all_the_control_tokens(
    coder: Vocabulary, prompt: InfillPrompt, slot_cells: int, n_batch: int
) -> None:
    found = infill_tokens_of(prompt, coder, slot_cells=slot_cells, n_batch=n_batch)
    assert len(found) <= slot_cells - max(1, slot_cells // 4)
    markers = coder.infill_tokens
    pieces = (coder.token_bytes(token, special=True).decode(errors="replace") for token in found)
    pairs = zip(found, pieces, strict=True)
    controls = [token for token, piece in pairs if piece in coder.control_texts]
    gap = [markers.prefix, markers.suffix, markers.middle]
    files = controls[: -len(gap)]
    assert controls[-len(gap) :] == gap
    assert files == [markers.repository, *[markers.separator] * (len(files) - 1)][: len(files)]
    assert len(files) <= 2 + len(prompt.others)


@given(prompt=prompts)
def test_what_fits_is_whole(coder: Vocabulary, prompt: InfillPrompt) -> None:
    text = spelled(coder, prompt, slot_cells=4000, n_batch=1000)
    around = f"<|fim_prefix|>{prompt.prefix}<|fim_suffix|>{prompt.suffix}<|fim_middle|>"
    expected = around + prompt.middle
    assert text.replace("\ufffd", "\ufdd0").endswith(expected)


def test_a_slot_that_holds_no_gap_is_refused(coder: Vocabulary) -> None:
    with pytest.raises(Refusal, match="one slot of this agent holds 3"):
        infill_tokens_of(InfillPrompt(prefix="", suffix=""), coder, slot_cells=3, n_batch=9)


def test_a_model_that_knows_no_gap_is_named_for_what_it_lacks(vocabulary: Vocabulary) -> None:
    assert vocabulary.infill_tokens == InfillTokens(None, None, None)
    with pytest.raises(Refusal) as caught:
        infill_tokens_of(InfillPrompt(prefix="", suffix=""), vocabulary, slot_cells=9, n_batch=9)
    assert caught.value.result["InfillNotSupported"] == (
        "Infill is not supported by this model: its vocabulary has no prefix token, suffix token, "
        "middle token; serve a model that was trained to fill in the middle"
    )


def test_a_marker_that_a_blank_of_the_vocabulary_completes_is_no_text(tmp_path: Path) -> None:
    """SentencePiece puts a blank before a text, and the marker of one family begins with one."""
    path = tmp_path / "blank.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    parts = ["▁", "<", "P", "R", "E", ">", "▁<", "▁<P", "▁<PR", "▁<PRE"]
    names = ["<unk>", "<s>", "</s>", "▁<PRE>", *parts]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * 4 + [float(-number) for number in range(len(parts))])
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (1 + len(parts))])
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    vocabulary = Vocabulary.load(path)
    try:
        assert vocabulary.infill_tokens.prefix == names.index("▁<PRE>")
        plain = vocabulary.tokenize("<PRE>", add_special=False, parse_special=False)
        assert plain == [vocabulary.infill_tokens.prefix], "it is one of those vocabularies"
        for text in ("<PRE>", " <PRE>", "P <PRE><PRE>", "▁<PRE>"):
            assert vocabulary.infill_tokens.known.isdisjoint(vocabulary.tokenize_text(text))
    finally:
        vocabulary.close()
