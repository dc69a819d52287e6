"""What is no balancer may answer anything: commands say so in a line, and do not crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx
import pytest

from paddler_trio.cli.balancer_http import REFUSAL_CHARS, BalancerRefusedError
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.management_client import ManagementClient
from paddler_trio.cli.model.store_client import StoreClient
from paddler_trio.cli.terminal import printable
from paddler_trio.errors import PaddlerError

DEEP: Final = '{"a":' * 100_000
LONG: Final = '{"agents":' + "9" * 5_000 + "}"
ASKING: Final[dict[str, Callable[[httpx.Client], object]]] = {
    "agents": lambda http: ManagementClient("here", http).fleet(),
    "stream": lambda http: next(ManagementClient("here", http).events("/api/v2/agents/stream")),
    "caches": lambda http: next(ManagementClient("here", http).command_caches(None)),
    "drain": lambda http: ManagementClient("here", http).drain("a", drained=True),
    "fit": lambda http: ManagementClient("here", http).ask_agent("POST", "a", "fit"),
    "store": lambda http: StoreClient("here", http).listing(),
}


def client_of(status: int, text: str) -> httpx.Client:
    answers = httpx.MockTransport(lambda _: httpx.Response(status, text=text))
    return httpx.Client(transport=answers, base_url="http://here")


@pytest.mark.parametrize("text", [DEEP, LONG, "<html>"], ids=["deep", "long number", "page"])
@pytest.mark.parametrize("asking", ASKING)
def test_what_is_no_json_is_an_error_of_one_line(asking: str, text: str) -> None:
    is_stream = asking == "stream"
    with (
        client_of(200, f"data: {text}\n\n" if is_stream else text) as http,
        pytest.raises(PaddlerError, match="JSON"),
    ):
        ASKING[asking](http)


def test_a_refusal_is_no_page() -> None:
    with client_of(500, "x" * 1_000_000) as http, pytest.raises(BalancerRefusedError) as caught:
        ManagementClient("here", http).fleet()
    assert len(str(caught.value)) < REFUSAL_CHARS + 100


def test_half_of_a_surrogate_pair_is_shown_as_what_it_is_not() -> None:
    assert printable("a\ud800b\udfff") == "a\ufffdb\ufffd"


def test_a_name_that_httpx_cannot_decode_is_an_error_of_one_line() -> None:
    with (
        ManagementClient.open(ManagementFlags("xn--zzzzzz--:8060")) as client,
        pytest.raises(PaddlerError, match=r"xn--zzzzzz--:8060: A-label must not end"),
    ):
        client.fleet()
