"""A worker's pickle makes nothing but values of this package."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from paddler_trio.errors import WireError
from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.processes.preparation.preparation_messages import (
    LENGTH,
    JobDone,
    Refused,
    frame_of,
    read_result,
)


@attrs.frozen
class Made:
    """Pickled as a call."""

    call: Callable[..., object]
    arguments: tuple[object, ...]

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def test_a_result_is_read_as_it_was_sent() -> None:
    done = JobDone(Refused({"SamplerError": "no"}), is_last=True)
    assert read_result(frame_of(done)[LENGTH.size :], ()) == done


def test_shared_objects_are_sent_as_numbers() -> None:
    shared = (object(), ["rules"])
    body = frame_of({"x": shared[1]}, shared)[LENGTH.size :]
    assert b"rules" not in body
    there = (object(), ["theirs"])
    read = read_result(body, there)
    assert isinstance(read, dict)
    assert read["x"] is there[1]
    with pytest.raises(WireError, match="shared object"):
        read_result(body, ())


def test_enumerations_are_read_as_older_pythons_write_them() -> None:
    body = pickle.dumps(Made(getattr, (TokenClass, "CONTENT")))
    assert read_result(body, ()) is TokenClass.CONTENT


@pytest.mark.parametrize(
    "made",
    [
        Made(os.system, ("true",)),
        Made(eval, ("1",)),
        Made(getattr, ("text", "upper")),
        Made(getattr, (TokenClass, "__subclasses__")),
    ],
    ids=["a command", "an expression", "a method", "an attribute of a class"],
)
def test_nothing_else_is_made(made: Made) -> None:
    with pytest.raises(WireError):
        read_result(pickle.dumps(made), ())


@pytest.mark.parametrize("body", [b"", b"garbage", pickle.dumps([1])[:-3]])
def test_what_is_broken_is_an_error_of_the_wire(body: bytes) -> None:
    with pytest.raises(WireError):
        read_result(body, ())
