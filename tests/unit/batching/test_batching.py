"""The engine's plans: nothing twice, nothing skipped, nobody starved, the budget held."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddler_trio.scheduler.batching.admission import refusal
from paddler_trio.scheduler.batching.batch_plan import Share, fair_shares, plan_batch
from paddler_trio.scheduler.batching.sequences import Sequence
from paddler_trio.scheduler.batching.streams import Streams


@st.composite
def sequences(draw: st.DrawFn) -> list[Sequence]:
    found = []
    for key in range(draw(st.integers(0, 12))):
        prompt = draw(st.integers(1, 400))
        drawn = draw(st.integers(0, 20))
        computed = draw(st.integers(0, prompt + drawn - (1 if drawn else 0)))
        found.append(Sequence(key, key, prompt, 1000, computed, drawn))
    return found


@given(sequences(), st.integers(1, 300), st.integers(0, 100))
def test_a_plan_holds_its_budget_and_puts_decoding_first(
    views: list[Sequence], budget: int, turn: int
) -> None:
    shares = plan_batch(views, token_budget=budget, turn=turn)
    assert sum(share.count for share in shares) <= budget
    assert len({share.sequence.key for share in shares}) == len(shares)
    for share in shares:
        assert share.start == share.sequence.num_computed
        assert 1 <= share.count <= share.sequence.num_missing
    generating = [view for view in views if view.is_generating]
    planned = [share.sequence for share in shares if share.sequence.is_generating]
    assert len(planned) == min(len(generating), budget)
    if any(view.num_missing for view in views):
        assert shares, "there was work and nothing was planned"


@given(st.lists(st.integers(0, 500), max_size=10), st.integers(0, 800), st.integers(0, 50))
def test_shares_are_max_min_fair(wants: list[int], budget: int, turn: int) -> None:
    shares = fair_shares(wants, budget, turn)
    assert sum(shares) == min(budget, sum(wants))
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    for share, want in zip(shares, wants, strict=True):
        if share < want:
            assert all(other <= share + 1 for other in shares), "somebody hungry got less"


@given(st.integers(2, 20), st.integers(1, 8))
def test_more_generating_sequences_than_budget_take_turns(count: int, budget: int) -> None:
    views = [Sequence(key, key, 5, 1000, 5, 1) for key in range(count)]
    rounds = 3 * count
    got = dict.fromkeys(range(count), 0)
    for turn in range(rounds):
        for share in plan_batch(views, token_budget=budget, turn=turn):
            got[share.sequence.key] += 1
    assert min(got.values()) > 0, "a stream starved"
    assert max(got.values()) - min(got.values()) <= budget + 1


class StreamsMachine(RuleBasedStateMachine):
    """A pretended llama.cpp that remembers exactly which positions it computed."""

    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.streams = Streams(self.SLOTS, token_budget=16)
        self.keys = 0
        self.cache: dict[int, list[int]] = {}
        self.running: dict[int, Sequence] = {}
        self.queued: list[int] = []

    @rule(prompt=st.integers(1, 60), drawn=st.integers(0, 9), more=st.integers(1, 20))
    def arrive(self, prompt: int, drawn: int, more: int) -> None:
        self.keys += 1
        self.streams.enqueue(
            self.keys, num_prompt_tokens=prompt, max_tokens=drawn + more, num_drawn=drawn
        )
        self.queued.append(self.keys)

    @rule()
    def start(self) -> None:
        sequence = self.streams.start_next()
        if sequence is None:
            assert not self.queued or len(self.running) == self.SLOTS
            return
        assert sequence.key == self.queued.pop(0), "streams are given out of order"
        assert sequence.stream not in {other.stream for other in self.running.values()}
        assert 0 <= sequence.stream < self.SLOTS
        self.running[sequence.key] = sequence
        self.cache[sequence.stream] = []

    @rule(fails=st.booleans())
    def run_a_pass(self, fails: bool) -> None:
        shares = self.streams.plan()
        if fails:
            return  # nothing was committed: the same work is planned again
        self._compute(shares)
        self.streams.commit(shares)
        for share in shares:
            sequence = share.sequence
            if sequence.num_missing == 0:
                sequence.num_drawn += 1
                if sequence.num_drawn >= sequence.max_tokens:
                    self._end(sequence.key)

    def _compute(self, shares: tuple[Share, ...]) -> None:
        for share in shares:
            cache = self.cache[share.sequence.stream]
            for position in range(share.start, share.start + share.count):
                assert position == len(cache), "a token was computed twice or skipped"
                cache.append(position)

    @precondition(lambda self: self.running or self.queued)
    @rule(choice=st.integers(0, 100))
    def stop(self, choice: int) -> None:
        keys = [*self.running, *self.queued]
        self._end(keys[choice % len(keys)])

    def _end(self, key: int) -> None:
        ended = self.streams.end(key)
        if key in self.running:
            assert ended is self.running.pop(key)
        else:
            assert ended is None
            self.queued.remove(key)

    @invariant()
    def books_agree(self) -> None:
        assert {s.key for s in self.streams.running} == set(self.running)
        assert self.streams.is_idle == (not self.running and not self.queued)
        for sequence in self.running.values():
            assert len(self.cache[sequence.stream]) == sequence.num_computed


TestStreams = StreamsMachine.TestCase
TestStreams.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    def reason(prompt: int, drawn: int = 0, wanted: int = 5) -> str | None:
        refused = refusal(num_prompt_tokens=prompt, max_tokens=wanted, cells=512, num_drawn=drawn)
        return None if refused is None else refused.reason

    assert reason(512) is None
    assert "the prompt is empty" in (reason(0) or "")
    assert "513 tokens" in (reason(513) or "")
    assert "512 tokens" in (reason(513) or "")
    assert "514 tokens" in (reason(510, drawn=4) or "")
    assert "max_tokens is 0" in (reason(10, wanted=0) or "")
    assert "5 tokens were drawn already" in (reason(10, drawn=5) or "")


def test_an_answer_ends_where_its_limit_or_its_cells_end() -> None:
    assert not Sequence(1, 0, 10, 5, 10, 4).drawn_out(cells=100)
    assert Sequence(1, 0, 10, 5, 10, 5).drawn_out(cells=100)
    assert not Sequence(1, 0, 10, 50, 10, 2).drawn_out(cells=12)
    assert Sequence(1, 0, 10, 50, 10, 3).drawn_out(cells=12)
