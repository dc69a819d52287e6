"""The messages of the control socket come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.errors import WireError
from paddler_trio.processes.model_store.store_messages import (
    MAX_MESSAGE_BYTES,
    Configure,
    Desire,
    PassedRequest,
    RequestEnded,
    StoreCounts,
    StoreFailed,
    StoreUp,
    decode_message,
    encode_message,
    is_store_path,
)

LATIN = st.text(st.characters(max_codepoint=255), max_size=50)
NUMBERS = st.integers(min_value=0, max_value=2**63)
MESSAGES = st.one_of(
    st.builds(Configure, LATIN, NUMBERS, LATIN),
    st.builds(
        PassedRequest,
        NUMBERS,
        LATIN,
        LATIN,
        LATIN,
        LATIN,
        st.lists(st.tuples(LATIN, LATIN), max_size=5).map(tuple),
        LATIN,
        st.binary(max_size=100),
    ),
    st.builds(Desire, st.lists(st.binary(max_size=50), max_size=3).map(tuple)),
    st.builds(StoreUp, NUMBERS, NUMBERS),
    st.builds(StoreFailed, LATIN),
    st.builds(RequestEnded, NUMBERS, NUMBERS, st.text(max_size=50)),
    st.builds(
        StoreCounts,
        files=NUMBERS,
        used_bytes=NUMBERS,
        found=st.tuples(NUMBERS, NUMBERS, NUMBERS),
        downloads=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    ),
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(
    message: Configure
    | PassedRequest
    | Desire
    | StoreUp
    | StoreFailed
    | RequestEnded
    | StoreCounts,
) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=60))
def test_other_bytes_are_an_error_and_nothing_worse(data: bytes) -> None:
    try:
        decode_message(data)
    except WireError:
        return


def test_what_does_not_fit_the_socket_is_refused_with_the_limit() -> None:
    with pytest.raises(WireError, match=str(MAX_MESSAGE_BYTES)):
        encode_message(Desire((b"x" * MAX_MESSAGE_BYTES,)))


def test_the_paths_of_the_store() -> None:
    assert is_store_path("/api/v2/store")
    assert is_store_path("/api/v2/store/")
    assert is_store_path("/api/v2/store/hf/a/b")
    assert not is_store_path("/api/v2/stores")
    assert not is_store_path("/api/v2")
