"""What is settled is left out of collections, and what of it became garbage is found later."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from paddler_trio.heap import freeze_heap


class Knot:
    """Keeps itself alive."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_a_collection_does_not_walk_what_is_settled_but_the_next_settling_does() -> None:
    knot = Knot()
    seen = weakref.ref(knot)
    freeze_heap()
    assert gc.get_freeze_count() > 1000
    del knot
    gc.collect()
    assert seen() is not None
    freeze_heap()
    assert seen() is None
