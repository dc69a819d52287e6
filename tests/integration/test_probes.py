"""What monitors ask: ``GET`` or ``HEAD``, on either port, many times over one connection."""

from __future__ import annotations

import http.client

import pytest
from fleet import Fleet


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
@pytest.mark.parametrize("port", ["inference", "management"])
def test_a_monitor_may_ask_for_the_head_alone(shared_fleet: Fleet, port: str, path: str) -> None:
    address = {"inference": shared_fleet.inference_url, "management": shared_fleet.management_url}
    connection = http.client.HTTPConnection(address[port].removeprefix("http://"), timeout=30)
    try:
        heads = []
        for method in ("GET", "HEAD", "GET"):
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.read() == (b"" if method == "HEAD" else b"OK")
            heads.append((answer.status, answer.headers["content-length"]))
        assert heads == [(200, "2")] * 3
        connection.request("HEAD", "/nothing")
        assert connection.getresponse().status == 404
    finally:
        connection.close()
