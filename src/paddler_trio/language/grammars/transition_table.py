"""Rows of transitions that take room only where they are known."""

from __future__ import annotations

import numpy as np

DEAD = 0
"""The row of the state after a text that does not fit."""
UNKNOWN = -1
"""A transition that was not needed yet."""
PAGE_CLASSES = 64
_UNKNOWN_PAGE, _DEAD_PAGE = range(2)


class TransitionTable:
    """The row after each class of characters, in pages that are made when they are needed.

    A grammar may have thousands of classes and of states, but few of a state's transitions are ever
    asked about.
    """

    def __init__(self, num_classes: int) -> None:
        self._num_pages_of_row = -(-num_classes // PAGE_CLASSES)
        self.clear()

    def clear(self) -> None:
        """Forget all rows but the dead one."""
        self._places = np.full((16, self._num_pages_of_row), _UNKNOWN_PAGE, np.int32)
        self._places[DEAD] = _DEAD_PAGE
        self._pages = np.full((16, PAGE_CLASSES), UNKNOWN, np.int32)
        self._pages[_DEAD_PAGE] = DEAD
        self._num_rows, self._num_pages = 1, 2

    @property
    def nbytes(self) -> int:
        """What it takes, with the room in which it grows."""
        return self._places.nbytes + self._pages.nbytes

    def add_row(self) -> int:
        """Make room for a state; returns the bytes that it takes."""
        if self._num_rows == len(self._places):
            self._places = _doubled(self._places, _UNKNOWN_PAGE)
        self._num_rows += 1
        return self._num_pages_of_row * self._places.itemsize

    def after(self, rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """The row after each class in each row, or UNKNOWN; int32."""
        places = self._places[rows, classes // PAGE_CLASSES]
        following: np.ndarray = self._pages[places, classes % PAGE_CLASSES]
        return following

    def after_one(self, row: int, character_class: int) -> int:
        """As ``after``, of one."""
        place = self._places[row, character_class // PAGE_CLASSES]
        return int(self._pages[place, character_class % PAGE_CLASSES])

    def set(self, row: int, character_class: int, following: int) -> int:
        """Keep a transition; returns the bytes that it takes."""
        page, column = divmod(character_class, PAGE_CLASSES)
        added_bytes = 0
        if self._places[row, page] == _UNKNOWN_PAGE:
            if self._num_pages == len(self._pages):
                self._pages = _doubled(self._pages, UNKNOWN)
            self._places[row, page] = self._num_pages
            self._num_pages += 1
            added_bytes = PAGE_CLASSES * self._pages.itemsize
        self._pages[self._places[row, page], column] = following
        return added_bytes


def _doubled(rows: np.ndarray, filling: int) -> np.ndarray:
    return np.concatenate([rows, np.full_like(rows, filling)])
