"""``paddler-trio requests`` reads as many pages as it takes, and writes them in three forms."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from cli_in_process import invoke
from fleet_documents import NOW_MS, TIME, Json, request


@contextmanager
def balancer(*, known: int) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """One that knows requests 1 to ``known``; its address, and the queries it got."""
    queries: list[dict[str, str]] = []

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = dict(parse_qsl(urlsplit(self.path).query))
            queries.append(query)
            newest = min(known, int(query.get("before", known + 1)) - 1)
            keys = range(newest, max(0, newest - int(query["limit"])), -1)
            page: Json = {
                "now_ms": NOW_MS,
                "time": TIME,
                "requests": [request(key, client=f"=c{key}", id="\x1b]0;é\a") for key in keys],
                "next": keys[-1] if keys and keys[-1] > 1 else None,
            }
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", queries
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_more_than_a_page_is_read_page_by_page() -> None:
    with balancer(known=5000) as (address, queries):
        ended = invoke("requests", "--json", "--limit", 2300, "--management-addr", address)
    assert ended.exit_code == 0, ended.stderr
    keys = [each["key"] for each in json.loads(ended.stdout)["requests"]]
    assert keys == list(range(5000, 2700, -1))
    assert [(q["limit"], q.get("before")) for q in queries] == [
        ("1000", None),
        ("1000", "4001"),
        ("300", "3001"),
    ]


def test_reading_ends_with_the_last_request_there_is() -> None:
    with balancer(known=3) as (address, queries):
        ended = invoke("requests", "--limit", 10, "--management-addr", address)
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["key", "3", "2", "1"]
    assert len(queries) == 1
    with balancer(known=0) as (address, _):
        ended = invoke("requests", "--management-addr", address)
    assert ended.stdout == "no request is known that is so; see --state, or send one\n"


def test_filters_and_times_are_the_balancers() -> None:
    options = ("--state", "finished", "--agent", "a1", "--ending", "failed", "--since", "2.5")
    with balancer(known=3) as (address, queries):
        assert invoke("requests", *options, "--management-addr", address).exit_code == 0
    assert queries[0] == {"limit": "1"}, "for the time"
    assert queries[1] == {
        "state": "finished",
        "agent": "a1",
        "ending": "failed",
        "since_ms": str(NOW_MS - 2500),
        "limit": "50",
    }


def test_csv_has_no_formulas() -> None:
    with balancer(known=1) as (address, _):
        ended = invoke("requests", "--csv", "--management-addr", address)
    (row,) = csv.DictReader(io.StringIO(ended.stdout))
    assert (row["key"], row["client"], row["arrived"]) == ("1", "'=c1", "2026-03-01T11:59:57.000Z")


def test_control_characters_in_csv_reach_no_terminal() -> None:
    """A client chooses what its request is called."""
    with balancer(known=1) as (address, _):
        ended = invoke("requests", "--csv", "--management-addr", address)
    (row,) = csv.DictReader(io.StringIO(ended.stdout))
    assert row["id"] == "\ufffd]0;é\ufffd"


def test_csv_and_json_exclude_each_other() -> None:
    assert invoke("requests", "--csv", "--json").exit_code == 2
