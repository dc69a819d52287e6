"""Processes that pass bytes on and do nothing else: what any two hops of Python cost.

    python benchmarks/relays.py HOST:PORT

Nothing is read of what passes: no heads, frames, queue, limits or accounts. A balancer and an agent
cannot cost less than two of these in a row, so they are beside ours in ``whole_path.py`` and
``reverse_proxy.py`` as the most that there is to gain.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
from child_processes import process, split, wait_for

READ_BYTES = 65_536

_LISTENING = re.compile(r"relay listens on (\d+)")


@attrs.frozen
class Relays:
    """Where the first of them listens, and their process ids by name."""

    address: tuple[str, int]
    pids: dict[str, int]


@contextmanager
def relays(count: int, target: tuple[str, int], folder: Path) -> Iterator[Relays]:
    """So many in a row, the last of which passes to ``target``; ended on leaving."""
    with ExitStack() as stack:
        pids = {}
        for number in range(count):
            log = folder / f"relay-{number}-to-{target[1]}.log"
            command = [sys.executable, __file__, "{}:{}".format(*target)]
            child = stack.enter_context(process(command, log))
            port = wait_for(lambda text: _LISTENING.search(text), child, log)[1]
            target = ("127.0.0.1", int(port))
            pids[f"relay {number + 1}"] = child.pid
        yield Relays(target, pids)


def serve(target: tuple[str, int]) -> None:
    """Until killed. Each connection has one of its own to ``target``; both end together."""
    others: dict[int, tuple[socket.socket, socket.socket]] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as epoll:
        print(f"relay listens on {listener.getsockname()[1]}", flush=True)
        epoll.register(listener, select.EPOLLIN)
        accepts = listener.fileno()
        while True:
            for fd, _ in epoll.poll():
                if fd == accepts:
                    ours, _ = listener.accept()
                    theirs = socket.create_connection(target)
                    for source, sink in ((ours, theirs), (theirs, ours)):
                        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        others[source.fileno()] = (source, sink)
                        epoll.register(source, select.EPOLLIN)
                    continue
                pair = others.get(fd)
                if pair is None:  # its other end was closed by an event before this one
                    continue
                source, sink = pair
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = source.recv(READ_BYTES)
                    sink.sendall(data)
                if not data:
                    for end in pair:
                        del others[end.fileno()]
                        end.close()


if __name__ == "__main__":
    serve(split(sys.argv[1]))
