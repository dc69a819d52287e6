"""Characters survive, wherever a token ends."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.language.answers.utf8_carry import Utf8Carry

steady = settings(deadline=None, derandomize=True)


def pieces_of(whole: bytes, cuts: set[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges)]


@steady
@given(st.text(), st.sets(st.integers(min_value=0, max_value=80)))
def test_any_text_cut_anywhere_comes_out_whole(text: str, cuts: set[int]) -> None:
    carry = Utf8Carry()
    heard = "".join(carry.feed(piece) for piece in pieces_of(text.encode(), cuts))
    assert heard == text
    assert carry.held_back == b""
    assert carry.flush() == ""


@steady
@given(st.binary(), st.sets(st.integers(min_value=0, max_value=80)))
def test_any_bytes_cut_anywhere_read_as_if_they_came_at_once(whole: bytes, cuts: set[int]) -> None:
    carry = Utf8Carry()
    heard = "".join(carry.feed(piece) for piece in pieces_of(whole, cuts)) + carry.flush()
    assert heard == whole.decode("utf-8", errors="replace")


def test_an_emoji_split_over_two_tokens_appears_with_the_second() -> None:
    carry = Utf8Carry()
    emoji = "😀".encode()
    assert carry.feed(b"Hello " + emoji[:3]) == "Hello "
    assert carry.held_back == emoji[:3]
    assert carry.feed(emoji[3:] + b" world") == "😀 world"


def test_a_character_that_never_ends_becomes_one_replacement_at_the_end() -> None:
    carry = Utf8Carry()
    assert carry.feed("한".encode()[:2]) == ""
    assert carry.flush() == "\ufffd"
    assert carry.feed(b"next") == "next"


def test_bytes_that_can_never_be_text_are_replaced_at_once() -> None:
    assert Utf8Carry().feed(b"a\xffb") == "a\ufffdb"
