"""A real balancer reports to a receiver of datagrams, and shows operators where."""

from __future__ import annotations

import socket

from feed_reader import FeedReader
from fleet import END_S, Fleet

LINES = {
    b"east.slots_idle:0|g",
    b"east.slots_processing:0|g",
    b"east.requests_buffered:0|g",
}


def test_a_balancer_reports_at_its_interval() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(END_S)
        address = "{}:{}".format(*receiver.getsockname())
        options = [
            f"--statsd-addr={address}",
            "--statsd-prefix=east.",
            "--statsd-reporting-interval=50",
            "--statsd-v1-names",
        ]
        with Fleet.start(agents=0, model=None, balancer_options=options) as fleet:
            assert {receiver.recv(2000) for _ in range(30)} == LINES
            with FeedReader.watching(fleet.management_url, "balancer") as reader:
                status = reader.next()["set"]["balancer"]["status"]
            assert status["addresses"]["statsd"] == [address]
