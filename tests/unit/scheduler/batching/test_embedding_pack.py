"""Packing documents: each exactly once, every pass within its bounds, nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.scheduler.batching.embedding_pack import WINDOW, Document, EmbeddingQueue

lengths = st.lists(st.integers(1, 60), max_size=80)


def documents_of(key: int, lengths: list[int]) -> list[Document]:
    return [Document(key, index, length) for index, length in enumerate(lengths)]


def drained(queue: EmbeddingQueue) -> list[tuple[Document, ...]]:
    packs = []
    while not queue.is_empty:
        packs.append(queue.next_pack())
    return packs


@given(st.lists(lengths, max_size=6), st.integers(1, 50), st.integers(1, 12))
def test_every_document_is_taken_once_and_passes_keep_their_bounds(
    requests: list[list[int]], max_tokens: int, max_documents: int
) -> None:
    queue = EmbeddingQueue(max_tokens, max_documents)
    for key, documents in enumerate(requests):
        queue.add(documents_of(key, documents))
    packs = drained(queue)
    taken = sorted((each.key, each.index, each.length) for pack in packs for each in pack)
    assert taken == [
        (key, index, length)
        for key, documents in enumerate(requests)
        for index, length in enumerate(documents)
    ]
    for pack in packs:
        assert 1 <= len(pack) <= max_documents
        assert len(pack) == 1 or sum(each.length for each in pack) <= max_tokens


@given(st.lists(lengths.filter(bool), min_size=1, max_size=6), st.integers(1, 50))
def test_a_request_s_earliest_document_waits_for_one_turn_of_the_others_at_most(
    requests: list[list[int]], max_tokens: int
) -> None:
    queue = EmbeddingQueue(max_tokens, 256)
    left = {key: set(range(len(documents))) for key, documents in enumerate(requests)}
    for key, documents in enumerate(requests):
        queue.add(documents_of(key, documents))
    waited = dict.fromkeys(left, 0)
    while not queue.is_empty:
        earliest = {key: min(indexes) for key, indexes in left.items() if indexes}
        taken = {(each.key, each.index) for each in queue.next_pack()}
        for key, index in taken:
            left[key].remove(index)
        for key, index in earliest.items():
            waited[key] = 0 if (key, index) in taken else waited[key] + 1
            assert waited[key] < len(requests)


@given(lengths.filter(bool), st.integers(60, 120))
def test_no_pass_leaves_room_for_a_document_that_was_in_sight(
    documents: list[int], max_tokens: int
) -> None:
    queue = EmbeddingQueue(max_tokens, 256)
    queue.add(documents_of(1, documents))
    waiting = dict(enumerate(documents))
    while not queue.is_empty:
        pack = queue.next_pack()
        for each in pack:
            del waiting[each.index]
        room = max_tokens - sum(each.length for each in pack)
        in_sight = sorted(waiting)[: WINDOW - 1]
        assert all(waiting[index] > room for index in in_sight)


@given(lengths, lengths, st.data())
def test_a_dropped_request_is_never_taken_again_and_harms_no_other(
    mine: list[int], others: list[int], data: st.DataObject
) -> None:
    queue = EmbeddingQueue(40, 8)
    queue.add(documents_of(1, mine))
    queue.add(documents_of(2, others))
    before = []
    for _ in range(data.draw(st.integers(0, 5))):
        if not queue.is_empty:
            before += queue.next_pack()
    queue.drop(1)
    after = [each for pack in drained(queue) for each in pack]
    assert all(each.key == 2 for each in after)
    assert sorted(each.index for each in before + after if each.key == 2) == list(
        range(len(others))
    )


def test_short_documents_fill_what_a_long_one_leaves() -> None:
    queue = EmbeddingQueue(100, 8)
    queue.add(documents_of(1, [70, 60, 20, 10, 5]))
    queue.add(documents_of(2, [300]))
    packs = [[(each.key, each.length) for each in pack] for pack in drained(queue)]
    assert packs == [[(1, 70), (1, 20), (1, 10)], [(2, 300)], [(1, 60), (1, 5)]]
