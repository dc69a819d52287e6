"""Whose requests keep slots busy, under any interleaving of ours, others' and reads."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paddler_trio.agent.servers.upstream_probe import LONGEST_AFTERLIFE_S, SlotAccount


def read(account: SlotAccount, num_busy: int) -> None:
    account.read_begins()
    account.read_ended(num_busy)


def test_others_are_noticed_with_the_second_read_and_forgotten_with_the_first() -> None:
    account = SlotAccount()
    read(account, 3)
    assert account.busy_elsewhere == 0
    read(account, 2)
    assert account.busy_elsewhere == 2
    read(account, 2)
    assert account.busy_elsewhere == 2
    read(account, 0)
    assert account.busy_elsewhere == 0


def test_ours_that_start_and_end_within_a_read_are_ours() -> None:
    account = SlotAccount()
    for _ in range(3):
        account.read_begins()
        account.started()
        account.started()
        account.ended(0, was_cancelled=False)
        account.ended(0, was_cancelled=False)
        account.read_ended(2)
        assert account.busy_elsewhere == 0


def test_a_cancelled_request_keeps_its_slot_until_that_is_free() -> None:
    account = SlotAccount()
    account.started()
    account.ended(0, was_cancelled=True)
    for _ in range(3):
        read(account, 1)
        assert (account.still_generating, account.busy_elsewhere) == (1, 0)
    read(account, 0)
    assert (account.still_generating, account.busy_elsewhere) == (0, 0)


def test_an_answer_to_an_older_question_says_nothing_about_a_cancelled_request() -> None:
    account = SlotAccount()
    account.started()
    account.read_begins()
    account.ended(0, was_cancelled=True)
    account.read_ended(0)
    assert account.still_generating == 1


def test_a_slot_that_never_gets_free_is_somebody_elses_after_a_while() -> None:
    account = SlotAccount()
    account.started()
    account.ended(0, was_cancelled=True)
    account.expire(LONGEST_AFTERLIFE_S - 0.1)
    assert account.still_generating == 1
    account.expire(LONGEST_AFTERLIFE_S)
    assert account.still_generating == 0
    read(account, 1)
    read(account, 1)
    assert account.busy_elsewhere == 1


def test_a_read_that_failed_is_no_second_read() -> None:
    account = SlotAccount()
    read(account, 1)
    account.read_begins()
    account.read_failed()
    read(account, 1)
    assert account.busy_elsewhere == 0
    read(account, 1)
    assert account.busy_elsewhere == 1


def test_more_ends_than_starts_are_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        SlotAccount().ended(0, was_cancelled=False)


class Interleavings(RuleBasedStateMachine):
    """A server whose answer is true at any one moment of the read."""

    def __init__(self) -> None:
        super().__init__()
        self.account = SlotAccount()
        self.now_s = 0.0
        self.sent = 0
        self.afterlives: list[float] = []
        self.others = 0
        self.reading = False
        self.answer: int | None = None
        self.others_in_answer = 0
        self.believed = [0, 0]
        """Others in the last two answers, as the server saw them."""

    @rule()
    def send(self) -> None:
        self.account.started()
        self.sent += 1

    @precondition(lambda self: self.sent)
    @rule()
    def complete(self) -> None:
        self.sent -= 1
        self.account.ended(self.now_s, was_cancelled=False)

    @precondition(lambda self: self.sent)
    @rule(goes_on=st.booleans())
    def cancel(self, goes_on: bool) -> None:
        self.sent -= 1
        self.account.ended(self.now_s, was_cancelled=True)
        if goes_on:
            self.afterlives.append(self.now_s)

    @precondition(lambda self: self.afterlives)
    @rule()
    def notice_cancel(self) -> None:
        self.afterlives.pop(0)

    @rule(number=st.integers(0, 3))
    def others_change(self, number: int) -> None:
        self.others = number

    @rule(dt=st.floats(0, 5))
    def time_passes(self, dt: float) -> None:
        self.now_s += dt
        self.afterlives = [each for each in self.afterlives if each > self.now_s - 29]
        self.account.expire(self.now_s)

    @precondition(lambda self: not self.reading)
    @rule()
    def ask(self) -> None:
        self.reading, self.answer = True, None
        self.account.read_begins()

    @precondition(lambda self: self.reading and self.answer is None)
    @rule(unseen=st.integers(0, 2))
    def server_looks(self, unseen: int) -> None:
        """Some of ours may not have arrived there, or wait for a slot. Such a one hides a cancelled
        one that goes on: the number is right then, and whose they are is not."""
        ours = max(0, self.sent - unseen * (not self.afterlives))
        self.answer = ours + len(self.afterlives) + self.others
        self.others_in_answer = self.others

    @precondition(lambda self: self.reading and self.answer is not None)
    @rule()
    def answer_arrives(self) -> None:
        assert self.answer is not None
        self.account.read_ended(self.answer)
        self.reading = False
        self.believed = [self.believed[1], self.others_in_answer]

    @precondition(lambda self: self.reading)
    @rule()
    def answer_is_lost(self) -> None:
        known = self.account.busy_elsewhere
        self.account.read_failed()
        assert self.account.busy_elsewhere == known
        self.reading = False
        self.believed = [known, known]

    @invariant()
    def nothing_is_negative(self) -> None:
        account = self.account
        assert min(account.in_flight, account.busy_elsewhere, account.still_generating) >= 0

    @invariant()
    def our_own_count_is_the_truth(self) -> None:
        assert self.account.in_flight == self.sent

    @invariant()
    def no_more_is_others_than_two_answers_in_a_row_had(self) -> None:
        assert self.account.busy_elsewhere <= min(self.believed)

    @precondition(lambda self: not self.reading)
    @rule()
    def in_quiet_others_are_known_within_two_reads_and_forgotten_within_one(self) -> None:
        for _ in range(2):
            read(self.account, self.sent + len(self.afterlives) + self.others)
        account = self.account
        assert account.busy_elsewhere + account.still_generating == (
            len(self.afterlives) + self.others
        )
        assert account.still_generating >= len(self.afterlives)
        read(self.account, self.sent)
        assert account.busy_elsewhere == account.still_generating == 0
        self.afterlives.clear()
        self.others = 0
        self.believed = [0, 0]


TestInterleavings = Interleavings.TestCase
