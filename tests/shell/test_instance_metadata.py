"""What an instance says of itself, asked of a service on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import h11
import pytest
import trio

from paddler_trio.agent.servers import instance_metadata
from paddler_trio.agent.servers.instance_metadata import (
    ENDPOINT,
    ENDPOINT_VARIABLE,
    metadata_endpoint,
    resolved_text,
)
from paddler_trio.errors import ConfigurationError

TOKEN = b"AQAEAFo-token=="
TOKEN_FIELD = b"x-aws-ec2-metadata-token"
LIFETIME_FIELD = b"x-aws-ec2-metadata-token-ttl-seconds"


@attrs.define(eq=False)
class MetadataDouble:
    """As EC2's service answers: 401 without a token, 404 for what the instance does not have.

    Args:
      token_status: of the route of tokens; 405 is a service without tokens.
      refusals: statuses that come first, whatever is asked.
      is_silent: it takes connections and says nothing.
      oversized: it says more than any value has.
    """

    values: Mapping[str, bytes]
    token_status: int = 200
    refusals: list[int] = attrs.field(factory=list)
    is_silent: bool = False
    asked: list[tuple[str, str]] = attrs.field(factory=list, init=False)
    port: int = attrs.field(default=0, init=False)

    @property
    def environment(self) -> dict[str, str]:
        return {ENDPOINT_VARIABLE: f"http://127.0.0.1:{self.port}"}

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        request: h11.Request | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(65_536)))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert request is not None
        self.asked.append((request.method.decode(), request.target.decode()))
        if self.is_silent:
            await stream.receive_some(1)
            return
        status, body = self.refusals.pop(0) if self.refusals else 0, b"later"
        if not status:
            status, body = self._answer(request)
        head = h11.Response(status_code=status, headers=[("Content-Length", str(len(body)))])
        answer = connection.send(head) + connection.send(h11.Data(data=body))
        with suppress(trio.BrokenResourceError):  # who asked has read enough
            await stream.send_all(answer + connection.send(h11.EndOfMessage()))

    def _answer(self, request: h11.Request) -> tuple[int, bytes]:
        fields = dict(request.headers)
        path = request.target.decode()
        if path == "/latest/api/token":
            if self.token_status == 200 and request.method != b"PUT":
                return 405, b""
            assert 1 <= int(fields[LIFETIME_FIELD]) <= 21_600
            return self.token_status, TOKEN
        if self.token_status == 200 and fields.get(TOKEN_FIELD) != TOKEN:
            return 401, b"no token"
        value = self.values.get(path.removeprefix("/latest/meta-data/"))
        return (404, b"<html>Not Found</html>") if value is None else (200, value)


@asynccontextmanager
async def metadata(double: MetadataDouble) -> AsyncIterator[Mapping[str, str]]:
    """The environment in which the double is asked."""
    async with trio.open_nursery() as nursery:
        start = partial(trio.serve_tcp, double.serve, 0, host="127.0.0.1")
        (listener, *_) = await nursery.start(start)
        double.port = listener.socket.getsockname()[1]
        yield double.environment
        nursery.cancel_scope.cancel()


ITEMS = {
    "local-ipv4": b"10.0.3.17",
    "public-hostname": b"ec2-1-2-3-4.example\n",
    "ipv6": b"2001:db8::7",
    "instance-id": b"i-0abc",
}
ASKED = [("PUT", "/latest/api/token"), ("GET", "/latest/meta-data/local-ipv4")]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://aws:metadata:local-ipv4:8080", "http://10.0.3.17:8080"),
        ("aws:metadata:public-hostname:8088", "ec2-1-2-3-4.example:8088"),
        ("https://aws:metadata:ipv6/llm", "https://[2001:db8::7]/llm"),
        ("127.0.0.1:8080", "127.0.0.1:8080"),
    ],
)
async def test_an_address_gets_what_the_instance_says(text: str, address: str) -> None:
    async with metadata(MetadataDouble(ITEMS)) as environment:
        assert await resolved_text(text, environment) == address


async def test_a_name_gets_what_the_instance_says() -> None:
    double = MetadataDouble(ITEMS)
    async with metadata(double) as environment:
        text = "gpu-aws:metadata:instance-id"
        assert await resolved_text(text, environment, is_address=False) == "gpu-i-0abc"
    assert [method for method, _ in double.asked] == ["PUT", "GET"]


@pytest.mark.parametrize("status", [404, 405])
async def test_a_service_that_knows_of_no_tokens_is_asked_without(status: int) -> None:
    double = MetadataDouble(ITEMS, token_status=status)
    async with metadata(double) as environment:
        assert await resolved_text("aws:metadata:local-ipv4:1", environment) == "10.0.3.17:1"
    assert double.asked == ASKED


async def test_a_service_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_metadata, "PAUSE_S", 0.001)
    double = MetadataDouble(ITEMS, refusals=[503, 429])
    async with metadata(double) as environment:
        assert await resolved_text("aws:metadata:local-ipv4:1", environment) == "10.0.3.17:1"
    assert double.asked == [ASKED[0]] * 2 + ASKED


@pytest.mark.parametrize(
    ("double", "num_asked", "reason"),
    [
        (MetadataDouble(ITEMS, token_status=403), 1, "turned off for this instance"),
        (MetadataDouble(ITEMS, token_status=401), 1, "gives no token, but status 401"),
        (MetadataDouble({}), 2, "this instance has none"),
        (MetadataDouble({"local-ipv4": b"ip-10.ec2"}), 2, "answers with no local-ipv4"),
        (MetadataDouble({"local-ipv4": b"1" * 254}), 2, "more than 253 bytes"),
        (MetadataDouble({"local-ipv4": b"1" * 10_000_000}), 2, "more than 253 bytes"),
        (MetadataDouble(ITEMS, refusals=[500] * 3), 3, "status 500, 3 times"),
    ],
)
async def test_what_is_not_told_is_an_error_that_says_why(
    double: MetadataDouble, num_asked: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_metadata, "PAUSE_S", 0.001)
    async with metadata(double) as environment:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            await resolved_text("aws:metadata:local-ipv4:8080", environment)
    assert str(caught.value).startswith("aws:metadata:local-ipv4 is not known: ")
    assert len(double.asked) == num_asked
    assert TOKEN.decode() not in str(caught.value)


async def test_silence_is_an_error_after_three_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_metadata, "PAUSE_S", 0.001)
    monkeypatch.setattr(instance_metadata, "TRY_S", 0.02)
    double = MetadataDouble(ITEMS, is_silent=True)
    async with metadata(double) as environment:
        with pytest.raises(ConfigurationError, match=r"no answer within 0\.02 s, 3 times"):
            await resolved_text("aws:metadata:local-ipv4:8080", environment)
    assert len(double.asked) <= 3, "a busy machine may not even connect in that time"


async def test_nobody_there_is_an_error_after_three_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_metadata, "PAUSE_S", 0.001)
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConfigurationError, match=r"no connection: .*refused, 3 times"):
            await resolved_text(
                "aws:metadata:local-ipv4:1", {ENDPOINT_VARIABLE: f"http://127.0.0.1:{port}"}
            )


def test_the_service_is_where_ec2_has_it_unless_the_variable_says_otherwise() -> None:
    assert str(metadata_endpoint({})) == f"{ENDPOINT}:80"
    assert str(metadata_endpoint({ENDPOINT_VARIABLE: ""})) == f"{ENDPOINT}:80"
    told = metadata_endpoint({ENDPOINT_VARIABLE: "http://[fd00:ec2::254]/"})
    assert (told.host, told.port) == ("fd00:ec2::254", 80)


@pytest.mark.parametrize("endpoint", ["https://169.254.169.254", "169.254.169.254", "file:///x"])
def test_a_variable_that_is_no_endpoint_is_refused_by_its_name(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{ENDPOINT_VARIABLE} "):
        metadata_endpoint({ENDPOINT_VARIABLE: endpoint})
