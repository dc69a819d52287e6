"""What is remembered of prompts: true of what was put in, bounded, and in no part without its
beginning."""

from __future__ import annotations

import sys
import time
from itertools import accumulate

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.prefix_index import (
    ENTRY_BYTES,
    MAX_FOUND,
    MIN_LIMIT,
    SHRINKS_TO,
    PrefixIndex,
)

A1, A2, A3 = AgentKey(1), AgentKey(2), AgentKey(3)


def chain(text: str) -> list[int]:
    """A block for each character."""
    return [hash(beginning) for beginning in accumulate(text)]


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
    index = PrefixIndex(most_bytes=8 * ENTRY_BYTES)
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
    assert index.num_blocks == int(SHRINKS_TO * before)
    assert index.depth(A1, chain("00 and so on")) == 1
    assert index.depth(A1, chain("19 and so on")) == 12
    for _ in range(50):
        index.has_kept(A1)
    for number in range(20):
        index.put(A1, chain(f"{number:02} and so on"))
    assert index.num_blocks == before


def test_the_bytes_of_an_entry_are_those_of_the_process() -> None:
    index = PrefixIndex()
    for number in range(300):
        index.put(A1, [hash((number, each)) for each in range(100)])
    part = index._parts[A1].blocks
    size = sys.getsizeof(part) + sys.getsizeof(index._holders)
    size += sum(map(sys.getsizeof, part)) + 64 * len(part)  # a node of the order for each
    assert 0.5 * ENTRY_BYTES < size / index.num_blocks <= ENTRY_BYTES


def test_a_prompt_costs_by_its_length_and_not_by_the_fleet() -> None:
    index = PrefixIndex()
    for agent in range(2000):
        index.put(AgentKey(agent), chain("everybody has this"))
    prompt = [hash(each) for each in range(32)]
    took_s = []
    for _ in range(100):
        began_s = time.perf_counter()
        index.find(prompt)
        index.put(A1, prompt)
        took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < 50e-6


AGENTS = st.sampled_from([A1, A2, A3])
TEXTS = st.text("ab", max_size=12)


class IndexMachine(RuleBasedStateMachine):
    """Beside a model that forgets nothing: the index may know less, and never anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(most_bytes=40 * ENTRY_BYTES)
        self.given: dict[AgentKey, list[str]] = {A1: [], A2: [], A3: []}

    @rule(agent=AGENTS, text=TEXTS)
    def a_prompt_is_granted(self, agent: AgentKey, text: str) -> None:
        self.index.put(agent, chain(text))
        self.given[agent].append(text)
        if len(text) <= MIN_LIMIT and len(text) < 40 * 7 // 8:
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
        for agent, depth in found.items():
            assert depth == self.index.depth(agent, chain(text))
            assert any(each[:depth] == text[:depth] for each in self.given[agent])

    @invariant()
    def no_more_is_kept_than_may_be(self) -> None:
        assert self.index.size_bytes <= self.index.most_bytes

    @invariant()
    def no_block_is_there_without_those_before_it(self) -> None:
        known = {
            chain(text)[-1]: text for texts in self.given.values() for text in _beginnings(texts)
        }
        for agent, part in self.index._parts.items():
            for block in part.blocks:
                text = known[block]
                assert len(text) == 1 or chain(text[:-1])[-1] in part.blocks, (agent, text)

    @invariant()
    def holders_and_parts_say_the_same(self) -> None:
        held = {
            (agent, block)
            for block, holders in self.index._holders.items()
            for agent in (holders if isinstance(holders, dict) else [holders])
        }
        parts = {(a, block) for a, part in self.index._parts.items() for block in part.blocks}
        assert held == parts
        assert len(parts) == self.index.num_blocks


def _beginnings(texts: list[str]) -> set[str]:
    return {text[:end] for text in texts for end in range(1, len(text) + 1)}


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(stateful_step_count=40)
