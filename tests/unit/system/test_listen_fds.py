"""Sockets of systemd are taken by their names, once, and nothing else is taken for one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from paddler_trio.errors import ConfigurationError
from paddler_trio.system.kernel import process_descriptors
from paddler_trio.system.kernel.process_descriptors import passed_sockets

NAMES = frozenset({"inference", "management"})


def environment(names: str, number: int) -> dict[str, str]:
    return {
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": str(number),
        "LISTEN_FDNAMES": names,
        "OTHER": "1",
    }


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Two neighbours that listen, as systemd passes them, and one behind them that does not."""
    first = 200
    monkeypatch.setattr(process_descriptors, "FIRST", first)
    found = []
    for place in range(3):
        with socket.socket() as sock:
            if place < 2:
                sock.bind(("127.0.0.1", 0))
                sock.listen()
            os.dup2(sock.fileno(), first + place, inheritable=True)
            found.append(first + place)
    yield found
    for each in found:
        try:
            os.close(each)
        except OSError:
            continue  # the test has closed it


def test_sockets_are_found_by_name_and_no_child_gets_them(descriptors: list[int]) -> None:
    left = environment("management:inference", 2)
    found = passed_sockets(NAMES, left)
    assert {name: [each.fileno() for each in sockets] for name, sockets in found.items()} == {
        "management": descriptors[:1],
        "inference": descriptors[1:2],
    }
    assert left == {"OTHER": "1"}
    for sockets in found.values():
        assert not os.get_inheritable(sockets[0].fileno())
        sockets[0].close()


def test_several_sockets_of_one_name_are_one_service(descriptors: list[int]) -> None:
    found = passed_sockets(NAMES, environment("inference:inference", 2))
    assert [each.fileno() for each in found["inference"]] == descriptors[:2]
    for each in found["inference"]:
        each.close()


def test_a_name_that_means_nothing_is_an_error_that_names_the_ones_that_do(
    descriptors: list[int],
) -> None:
    with pytest.raises(ConfigurationError, match=r"'door'.*one of inference, management"):
        passed_sockets(NAMES, environment("door", 1))


def test_what_does_not_listen_is_an_error(descriptors: list[int]) -> None:
    names = "inference:management:management"
    with pytest.raises(ConfigurationError, match=r"'management' of systemd is no ListenStream"):
        passed_sockets(NAMES, environment(names, 3))


@pytest.mark.parametrize(
    "changes",
    [{"LISTEN_PID": "1"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": ""}, {"LISTEN_FDS": "two"}],
)
def test_without_sockets_for_this_process_there_are_none(changes: dict[str, str]) -> None:
    left = {**environment("inference", 1), **changes}
    assert passed_sockets(NAMES, left) == {}
    assert left == {"OTHER": "1"}, "no child takes them for its own either"


def test_too_many_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="passed 65 sockets, at most 64"):
        passed_sockets(NAMES, environment("inference", 65))
