"""What is remembered of prompts: true of what was put in, bounded, and in no part without its
beginning."""

from __future__ import annotations

import time
import tracemalloc
from itertools import accumulate

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.prefix_index import (
    BLOCK_BYTES,
    MAX_FOUND,
    MIN_LIMIT,
    PIECE_BYTES,
    PrefixIndex,
)

A1, A2, A3 = AgentKey(1), AgentKey(2), AgentKey(3)


def chain(text: str) -> tuple[int, ...]:
    """A block for each character."""
    return tuple(hash(beginning) for beginning in accumulate(text))


def room_for(prompts: int, blocks: int) -> int:
    return prompts * PIECE_BYTES + blocks * BLOCK_BYTES


def test_the_agent_that_has_most_comes_first() -> None:
    index = PrefixIndex()
    index.put(A1, chain("system"))
    index.put(A2, chain("system, then more"))
    index.put(A3, chain("another"))
    assert index.find(chain("system, then less")) == {A2: 13, A1: 6}
    assert list(index.find(chain("system, then less"))) == [A2, A1]
    assert index.find(chain("nothing alike")) == {}


def test_of_those_that_have_as_much_the_last_comes_first() -> None:
    index = PrefixIndex()
    for agent in range(3 * MAX_FOUND):
        index.put(AgentKey(agent), chain("hot"))
    assert list(index.find(chain("hot"))) == [3 * MAX_FOUND - 1 - n for n in range(MAX_FOUND)]


def test_an_agent_that_is_gone_has_nothing() -> None:
    index = PrefixIndex()
    index.put(A1, chain("both"))
    index.put(A2, chain("both, and more"))
    index.drop(A2)
    assert index.find(chain("both, and more")) == {A1: 4}
    index.drop(A1)
    index.drop(A1)
    assert index.size_bytes == 0
    assert index.find(chain("both")) == {}


def test_the_end_of_what_was_given_longest_ago_is_forgotten_first() -> None:
    index = PrefixIndex(most_bytes=room_for(2, 8))
    index.put(A1, chain("first"))
    index.put(A1, chain("other"))
    assert index.find(chain("other")) == {A1: 5}
    assert index.find(chain("first")) == {A1: 3}


def test_an_agent_that_lost_something_is_believed_to_keep_less_until_it_shows_that_it_does() -> (
    None
):
    index = PrefixIndex()
    for number in range(20):
        index.put(A1, chain(f"{number:02} and so on"))
    before = index.num_blocks
    index.has_lost(A1)
    assert before - index.num_blocks == -(-before // 10)
    assert index.depth(A1, chain("00 and so on")) == 1
    assert index.depth(A1, chain("19 and so on")) == 12
    for _ in range(50):
        index.has_kept(A1)
    for number in range(20):
        index.put(A1, chain(f"{number:02} and so on"))
    assert index.num_blocks == before


def test_what_it_takes_is_what_the_process_takes() -> None:
    for length in (3, 24, 200):
        tracemalloc.start()
        index = PrefixIndex()
        for number in range(500):
            index.put(A1, tuple(hash((number, each)) for each in range(length)))
        took, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.5 * index.size_bytes < took <= index.size_bytes, length


def test_a_chat_that_grows_is_one_piece_and_parts_where_another_does() -> None:
    index, chat = PrefixIndex(), "system, "
    for turn in range(20):
        chat += f"turn {turn}; "
        assert index.put(A1, chain(chat)) == (len(chat) - len(f"turn {turn}; ") if turn else 0)
    assert len(index._path(chain(chat))) == 1
    assert index.put(A2, chain("system, another")) == 0
    assert len(index._path(chain(chat))) == 2
    assert index.find(chain(chat)) == {A1: len(chat), A2: 8}


def test_of_a_prompt_the_end_is_forgotten_though_its_beginning_is_older() -> None:
    index = PrefixIndex()
    for number in range(4):
        index.put(A1, chain(f"shared by all, {number} alone"))
    index._parts[A1].limit = 15 + 2 * 7
    index.put(A1, chain("shared by all, 4 alone"))
    kept = [index.depth(A1, chain(f"shared by all, {number} alone")) for number in range(5)]
    assert kept == [15, 15, 15, 22, 22]


def test_a_prompt_costs_by_its_length_and_not_by_the_fleet() -> None:
    index = PrefixIndex()
    for agent in range(2000):
        index.put(AgentKey(agent), chain("everybody has this"))
    prompt = tuple(hash(each) for each in range(32))
    shared = chain("everybody has this, and more")
    took_s = []
    for _ in range(100):
        began_s = time.perf_counter()
        for each in (prompt, shared):
            index.find(each)
            index.put(A1, each)
        took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < 100e-6


AGENTS = st.sampled_from([A1, A2, A3])
TEXTS = st.text("ab", max_size=12)


class IndexMachine(RuleBasedStateMachine):
    """Beside a model that forgets nothing: the index may know less, and never anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(most_bytes=room_for(8, 40))
        self.given: dict[AgentKey, list[str]] = {A1: [], A2: [], A3: []}

    @rule(agent=AGENTS, text=TEXTS)
    def a_prompt_is_granted(self, agent: AgentKey, text: str) -> None:
        before = self.index.depth(agent, chain(text))
        assert self.index.put(agent, chain(text)) == before
        self.given[agent].append(text)
        if len(text) <= MIN_LIMIT:
            assert self.index.depth(agent, chain(text)) == len(text)

    @rule(agent=AGENTS)
    def an_agent_is_gone(self, agent: AgentKey) -> None:
        self.index.drop(agent)
        self.given[agent] = []
        assert agent not in self.index.find(chain("a")) | self.index.find(chain("b"))

    @rule(agent=AGENTS)
    def an_agent_has_lost_something(self, agent: AgentKey) -> None:
        self.index.has_lost(agent)

    @rule(agent=AGENTS)
    def an_agent_has_kept_something(self, agent: AgentKey) -> None:
        self.index.has_kept(agent)

    @rule(text=TEXTS)
    def somebody_looks(self, text: str) -> None:
        found = self.index.find(chain(text))
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert self.index.deepest(chain(text)) == max(found.values(), default=0)
        for agent, depth in found.items():
            assert depth == self.index.depth(agent, chain(text))
            assert any(each[:depth] == text[:depth] for each in self.given[agent])

    @invariant()
    def no_more_is_kept_than_may_be(self) -> None:
        assert self.index.size_bytes <= self.index.most_bytes

    @invariant()
    def pieces_are_counted_and_each_holder_has_all_before(self) -> None:
        blocks, pieces, ends = 0, 0, {agent: set[int]() for agent in self.index._parts}
        left = list(self.index._first.items())
        while left:
            first, piece = left.pop()
            assert piece.blocks[0] == first
            assert piece.holders, "a piece that nobody has"
            assert max(piece.holders.values()) <= len(piece.blocks)
            blocks += sum(piece.holders.values())
            pieces += len(piece.holders)
            for agent, has in piece.holders.items():
                after = sum(agent in each.holders for each in piece.after.values())
                assert piece.num_after.get(agent, 0) == after
                assert has == len(piece.blocks) or not after
                if not after:
                    ends[agent].add(id(piece))
            for each in piece.after.values():
                assert each.before is piece
                assert each.holders.keys() <= piece.holders.keys()
            left += piece.after.items()
        assert (blocks, pieces) == (self.index.num_blocks, self.index._num_held)
        for agent, part in self.index._parts.items():
            assert ends[agent] <= {id(piece) for piece in part.ends}

    @invariant()
    def blocks_of_parts_are_counted(self) -> None:
        assert sum(p.num_blocks for p in self.index._parts.values()) == self.index.num_blocks


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(stateful_step_count=40)
