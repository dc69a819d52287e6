"""Where tokens are for a model that numbers images in two dimensions."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.image_tokens import Positions, image_tokens

# an image's rows and columns, or a number of words
parts = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)) | st.integers(1, 20), max_size=8)


@given(given_parts=parts)
def test_an_image_takes_as_many_positions_as_its_longer_side(
    given_parts: list[tuple[int, int] | int],
) -> None:
    prompt: list[int] = []
    starts: list[tuple[int, int]] = []
    position = 0
    for number, part in enumerate(given_parts):
        starts.append((len(prompt), position))
        if isinstance(part, int):
            prompt += [0] * part
            position += part
        else:
            digest = hashlib.sha256(b"%d" % number).digest()
            prompt += image_tokens(digest, part[0] * part[1], advance=max(part))
            position += max(part)
    positions = Positions(prompt)
    assert [positions.at(start) for start, _ in starts] == [expected for _, expected in starts]
    assert positions.at(len(prompt)) == position
    assert positions.at(len(prompt) + 5) == position + 5


@given(given_parts=parts)
def test_without_a_second_dimension_every_token_is_at_its_own_place(
    given_parts: list[tuple[int, int] | int],
) -> None:
    prompt: list[int] = []
    for number, part in enumerate(given_parts):
        if isinstance(part, int):
            prompt += [0] * part
        else:
            prompt += image_tokens(hashlib.sha256(b"%d" % number).digest(), part[0] * part[1])
    positions = Positions(prompt)
    assert [positions.at(index) for index in range(len(prompt) + 3)] == list(range(len(prompt) + 3))
