"""A request goes where its beginning is in the cache, as far as answers have told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.reverse_proxy.server_pools import (
    MAX_BEGINNINGS,
    MIN_BYTES,
    PrefixAffinity,
    cached_tokens,
)

SHARED = b"s" * 4 * MIN_BYTES


def test_the_server_with_the_longest_beginning_is_home() -> None:
    known = PrefixAffinity()
    known.answered(SHARED + b"a" * 8 * MIN_BYTES, "one", 40)
    known.answered(SHARED + b"b" * 8 * MIN_BYTES, "two", 40)
    assert known.home(SHARED + b"a" * 8 * MIN_BYTES + b"and more") == "one"
    assert known.home(SHARED + b"c" * 8 * MIN_BYTES) == "two"  # the last that had what they share
    assert known.home(b"x" * 8 * MIN_BYTES) is None


def test_a_short_request_has_no_home() -> None:
    known = PrefixAffinity()
    known.answered(b"x" * (MIN_BYTES - 1), "one", 5)
    assert known.home(b"x" * (MIN_BYTES - 1)) is None


def test_a_server_that_had_to_compute_what_it_should_have_is_home_no_more() -> None:
    known = PrefixAffinity()
    known.answered(SHARED, "one", 0)  # the first time it cannot have it
    assert known.home(SHARED) == "one"
    known.answered(SHARED, "one", 0)
    assert known.home(SHARED) is None


def test_a_server_that_says_nothing_is_believed_to_keep_it() -> None:
    known = PrefixAffinity()
    known.answered(SHARED, "one", None)
    known.answered(SHARED, "one", None)
    assert known.home(SHARED) == "one"


@given(st.lists(st.binary(min_size=MIN_BYTES, max_size=MIN_BYTES), min_size=1, max_size=5))
def test_what_was_answered_last_is_known(bodies: list[bytes]) -> None:
    known = PrefixAffinity()
    for number, body in enumerate(bodies):
        known.answered(body, str(number), 1)
    assert known.home(bodies[-1]) == str(len(bodies) - 1)


def test_the_oldest_are_forgotten() -> None:
    known = PrefixAffinity()
    for number in range(MAX_BEGINNINGS + 1):
        known.answered(b"%0512d" % number, "one", 1)
    assert known.home(b"%0512d" % 0) is None
    assert known.home(b"%0512d" % 1) == "one"


@pytest.mark.parametrize(
    ("tail", "cached"),
    [
        (b'...,"timings":{"cache_n":236,"prompt_n":1}}\n\ndata: [DONE]\n\n', 236),
        (b'"prompt_tokens_details": {"cached_tokens": 0}}', 0),
        (b'"cache_n":1} ... "cache_n":2}', 2),
        (b"fine", None),
    ],
)
def test_the_end_of_an_answer_says_what_was_cached(tail: bytes, cached: int | None) -> None:
    assert cached_tokens(tail) == cached
