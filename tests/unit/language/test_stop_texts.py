"""Stop texts: found character by character, whatever pieces the text arrives in."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from paddler_trio.language.answers.stop_texts import StopTexts

CHARACTERS = "abc"
STOPS = st.lists(st.text(CHARACTERS, min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text(CHARACTERS, max_size=6), max_size=12)


def plainly(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The same by the definition: the first character at which any stop text is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(STOPS, PIECES)
@example(["abcd", "bc"], ["ab", "cd"])
@example(["abc", "bc"], ["a", "b", "c"])
@example(["aab"], ["aaa", "b"])
def test_what_comes_out_does_not_depend_on_how_the_text_was_cut(
    stops: list[str], pieces: list[str]
) -> None:
    search = StopTexts(stops)
    shown = "".join(search.feed(piece) for piece in pieces) + search.flush()
    assert (shown, search.found) == plainly("".join(pieces), stops)


@given(STOPS, PIECES)
def test_only_what_may_become_a_stop_text_is_held_back(stops: list[str], pieces: list[str]) -> None:
    search = StopTexts(stops)
    shown = ""
    for index, piece in enumerate(pieces):
        shown += search.feed(piece)
        if search.found is None:
            text = "".join(pieces[: index + 1])
            assert shown + search.held_back == text
            held = search.held_back
            assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_nothing_is_let_through_after_a_stop_text() -> None:
    search = StopTexts(["end"])
    assert search.feed("to the end and on") == "to the "
    assert (search.feed("and on"), search.flush(), search.found) == ("", "", "end")


def test_what_was_held_back_is_no_stop_text_of_what_comes_after_a_flush() -> None:
    search = StopTexts(["stop"])
    assert search.feed("do not st") == "do not "
    assert search.flush() == "st"
    assert search.feed("op") == "op"
    assert search.found is None
