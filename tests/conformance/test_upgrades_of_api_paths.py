"""A client that dials an API path with a WebSocket is told to come with plain HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import httpx
import pytest
from fleet import Fleet

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
API_PATHS = [
    "/v1/responses",
    "/responses",
    "/v1/responses/resp_1",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/models",
]


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """The inference port and the exact port of a fleet that answers."""
    with Fleet.start(agents=1, balancer_options=["--compat-openai-addr=127.0.0.1:0"]) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=2048, temperature=0.0)
        fleet.wait_serving()
        (exact,) = fleet.balancer.wait_for_log("balancer up")["compat_openai"]  # type: ignore[misc]
        yield {"inference": fleet.inference, "exact": exact}


@pytest.mark.parametrize("port", ["inference", "exact"])
@pytest.mark.parametrize("path", API_PATHS)
def test_a_websocket_to_an_api_path_is_answered_426(
    path: str, port: str, addresses: dict[str, str]
) -> None:
    connection = http.client.HTTPConnection(addresses[port], timeout=60)
    try:
        connection.request("GET", path, headers=UPGRADE)
        response = connection.getresponse()
        assert (response.status, response.getheader("upgrade")) == (426, "HTTP/1.1")
        assert b"HTTP" in response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("port", ["inference", "exact"])
def test_a_plain_get_names_the_method_that_is_answered(
    port: str, addresses: dict[str, str]
) -> None:
    for path in ("/v1/responses", "/responses"):
        response = httpx.get(f"http://{addresses[port]}{path}", trust_env=False)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing"])
def test_a_websocket_to_an_unknown_path_stays_403(path: str, addresses: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(addresses["inference"], timeout=60)
    try:
        connection.request("GET", path, headers=UPGRADE)
        assert connection.getresponse().status == 403
    finally:
        connection.close()


@pytest.mark.parametrize("port", ["inference", "exact"])
@pytest.mark.parametrize("given", [[], ""])
@pytest.mark.parametrize("beside", [{}, {"instructions": "Be brief."}])
def test_an_input_without_anything_in_it_is_answered(
    given: object, port: str, beside: dict[str, object], addresses: dict[str, str]
) -> None:
    response = httpx.post(
        f"http://{addresses[port]}/v1/responses",
        json={"input": given, "max_output_tokens": 1, **beside},
        trust_env=False,
        timeout=60,
    )
    assert response.status_code == 200, response.text
