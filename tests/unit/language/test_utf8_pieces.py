"""Characters survive, wherever a token ends."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.language.answers.automaton import Automaton, SectionRules
from paddler_trio.language.answers.output_processor import OutputProcessor
from paddler_trio.wire.engine.engine_pipe import Ending

steady = settings(deadline=None, derandomize=True)


def pieces_of(whole: bytes, cuts: set[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges)]


def texts_of(tokens: Iterable[bytes]) -> list[str]:
    """The text after each token, and that of the end."""
    output = OutputProcessor(Automaton(SectionRules({})), None)
    steps = [output.take(token, ends_turn=False) for token in tokens]
    steps.append(output.end(Ending(1, "stop", 1, 0)))
    return ["".join(str(each.get("UndeterminableToken", "")) for each in step) for step in steps]


@steady
@given(st.binary(), st.sets(st.integers(min_value=0, max_value=80)))
def test_any_bytes_cut_anywhere_read_as_if_they_came_at_once(whole: bytes, cuts: set[int]) -> None:
    heard = "".join(texts_of(pieces_of(whole, cuts)))
    assert heard == whole.decode("utf-8", errors="replace")


def test_an_emoji_split_over_two_tokens_appears_with_the_second() -> None:
    emoji = "😀".encode()
    assert texts_of([b"Hello " + emoji[:3], emoji[3:] + b" world"]) == ["Hello ", "😀 world", ""]


def test_a_character_that_never_ends_becomes_one_replacement_at_the_end() -> None:
    assert texts_of(["한".encode()[:2]]) == ["", "\ufffd"]


def test_bytes_that_can_never_be_text_are_replaced_at_once() -> None:
    assert texts_of([b"a\xffb"]) == ["a\ufffdb", ""]
