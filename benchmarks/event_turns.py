"""What one event of a stream costs a process that only passes it on, by how it waits for it.

    python benchmarks/event_turns.py [--rounds 3] [--events 300] [--rate 100,400,2000]

``loop``: nothing but epoll, a read and a write. ``trio``: a task waits for the socket. ``ours``: as
on a balancer, read before Trio waits, frames taken apart and a chunk written. The kinds take
turns; medians of processor time are printed. What ``trio`` costs beyond ``loop`` is one turn of the
event loop, which ``ours`` does without: what it costs beyond ``loop`` is ours to make cheaper.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from paddler_trio.balancer.reverse_proxy.forwarded_head import chunk
from paddler_trio.system.ready_sockets import read_while, run_ready_sockets
from paddler_trio.wire.trio.tunnel_frames import FrameReader, body_frames

EVENT = b'data: {"choices":[{"delta":{"content":" river"}}],"object":"chat.completion.chunk"}\n\n'
FRAME = body_frames(EVENT)
READ_BYTES = 65_536
WARM_EVENTS = 50
LIMIT_S = 5.0


def loop(source: socket.socket, sink: socket.socket) -> None:
    with select.epoll() as epoll:
        epoll.register(source, select.EPOLLIN)
        while epoll.poll() and (data := source.recv(READ_BYTES)):
            sink.send(data)


def with_trio(source: socket.socket, sink: socket.socket) -> None:
    async def pass_on() -> None:
        while True:
            await trio.lowlevel.wait_readable(source)
            data = source.recv(READ_BYTES)
            if not data:
                return
            sink.send(data)

    trio.run(pass_on)


def as_ours(source: socket.socket, sink: socket.socket) -> None:
    frames = FrameReader()

    def read() -> bool:
        data = source.recv(READ_BYTES)
        if data:
            sink.send(b"".join([chunk(payload) for _, payload in frames.feed(data)]))
        return bool(data)

    async def pass_on() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_ready_sockets)
            await wait_all_tasks_blocked()
            await read_while(source.fileno(), read)
            nursery.cancel_scope.cancel()

    trio.run(pass_on)


KINDS: dict[str, Callable[[socket.socket, socket.socket], None]] = {
    "loop": loop,
    "trio": with_trio,
    "ours": as_ours,
}


def connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of one on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), timeout=LIMIT_S)
        theirs, _ = server.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def measure(kind: str, events: int, rate: float) -> float:
    """Microseconds of processor time for each event, in a process that passes them on."""
    (source, relay_source), (sink, relay_sink) = connection(), connection()
    pid = os.fork()
    if pid == 0:
        try:
            source.close()
            sink.close()
            relay_source.setblocking(False)
            KINDS[kind](relay_source, relay_sink)
        finally:
            os._exit(0)  # whatever happens: nothing else of this process is its own
    relay_source.close()
    relay_sink.close()
    try:
        with source, sink:
            send(source, sink, WARM_EVENTS, rate)
            before_ns = used_ns(pid)
            send(source, sink, events, rate)
            return (used_ns(pid) - before_ns) / events / 1000
    finally:
        os.waitpid(pid, 0)  # it ends with its source


def send(source: socket.socket, sink: socket.socket, events: int, rate: float) -> None:
    """One after the other, each once the one before has come, at this rate at most."""
    due_s = time.perf_counter()
    for _ in range(events):
        due_s += 1 / rate
        time.sleep(max(0.0, due_s - time.perf_counter()))
        source.sendall(FRAME)
        sink.recv(READ_BYTES)


def used_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--rate", default="100,400,2000", help="events a second")
    options = parser.parse_args()
    print("us of processor time an event " + "".join(f"{kind:>10}" for kind in KINDS))
    for rate in map(float, options.rate.split(",")):
        rounds = [
            [measure(kind, options.events, rate) for kind in KINDS] for _ in range(options.rounds)
        ]
        medians = map(statistics.median, zip(*rounds, strict=True))
        print(f"{rate:20.0f} events/s " + "".join(f"{each:10.1f}" for each in medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
