"""Classes of characters are exact for every character, and no more than a vocabulary can write."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.language.grammars.character_classes import CharacterClasses
from paddler_trio.language.grammars.gbnf_compilation import compile_gbnf
from paddler_trio.language.grammars.gbnf_reader import LAST_CHARACTER, Characters
from paddler_trio.language.grammars.pushdown_automaton import BYTES_OF_WORK, PushdownAutomaton
from paddler_trio.language.grammars.transition_table import DEAD, UNKNOWN, TransitionTable

POINTS = st.integers(1, 300) | st.integers(1, LAST_CHARACTER)
SETS = st.builds(Characters, st.lists(st.tuples(POINTS, POINTS)).map(tuple), st.booleans())
MANY = "".join(map(chr, range(0x10000, 0x10000 + 50_000)))


def is_in(characters: Characters, code_point: int) -> bool:
    found = any(first <= code_point <= last for first, last in characters.ranges)
    return found is not characters.is_negated


@given(st.lists(SETS, max_size=8, unique=True), st.sets(POINTS), st.lists(POINTS, max_size=20))
def test_a_class_is_in_exactly_the_sets_of_its_characters(
    sets: list[Characters], vocabulary: set[int], others: list[int]
) -> None:
    code_points = np.array(sorted(vocabulary), np.int64)
    starts, firsts, lasts = array("i", [0]), array("i"), array("i")
    for characters in sets:
        for first, last in characters.spans:
            firsts.append(first)
            lasts.append(last)
        starts.append(len(firsts))
    classes = CharacterClasses(starts, firsts, lasts, code_points)
    assert classes.count <= len(vocabulary)
    for code_point in [*vocabulary, *others]:
        if 0xD800 <= code_point <= 0xDFFF:
            continue
        character_class = classes.of(chr(code_point))
        if code_point in vocabulary:
            assert character_class < classes.count
            place = code_points.tolist().index(code_point)
            assert classes.of_vocabulary[place] == character_class
        for number, characters in enumerate(sets):
            assert classes.is_in(character_class, number) == is_in(characters, code_point)
    classes.forget()
    for code_point in vocabulary:
        assert classes.of(chr(code_point)) < classes.count


def test_characters_that_no_token_holds_take_no_room_in_a_table() -> None:
    """A literal of 50,000 of them made every state take 200 KB, and every second state as much
    again."""
    letters = np.arange(97, 123)
    automaton = PushdownAutomaton(
        compile_gbnf(f'root ::= "a" [a-z]{{100}} | "{MANY}"', "root"), letters
    )
    assert automaton.classes.count <= 2
    row = automaton.step_text(automaton.row_of(automaton.start), "a" * 50)
    assert row != DEAD
    assert automaton.table.nbytes < 20_000
    assert automaton.step_text(automaton.row_of(automaton.start), MANY[:50] + "a") == DEAD
    assert automaton.step_text(automaton.row_of(automaton.start), MANY[:8_000]) != DEAD
    assert automaton.table.nbytes < 500_000  # 8,000 states


def test_a_table_counts_as_work_where_it_grows() -> None:
    """Whichever way it grows: rows of very many classes, and transitions of very many rows."""
    code_points = np.array([ord(character) for character in MANY])
    automaton = PushdownAutomaton(compile_gbnf(f'root ::= "{MANY}" | [a-z]', "root"), code_points)
    automaton.begin()
    row, before = automaton.row_of(automaton.start), automaton.table.nbytes
    for character in MANY[:200]:
        row = automaton.step(row, automaton.classes.of(character))
    assert automaton.work * BYTES_OF_WORK * 2 > automaton.table.nbytes - before
    assert automaton.table.nbytes < 200 * automaton.classes.count  # a whole one takes four times it


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 299), st.integers(0, 60))),
)
def test_a_table_keeps_what_it_is_told(
    num_classes: int, transitions: list[tuple[int, int, int]]
) -> None:
    table = TransitionTable(num_classes)
    for _ in range(60):
        table.add_row()
    known: dict[tuple[int, int], int] = {}
    for row, number, following in transitions:
        known[row, number % num_classes] = following
        table.set(row, number % num_classes, following)
    rows, classes = np.indices((61, num_classes))
    expected = np.full(rows.shape, UNKNOWN)
    expected[DEAD] = DEAD
    for place, following in known.items():
        expected[place] = following
    assert table.after(rows, classes).tolist() == expected.tolist()
    for (row, character_class), following in known.items():
        assert table.after_one(row, character_class) == following
