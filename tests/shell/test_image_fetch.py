"""Images that messages point at, from hosts that send whatever they like."""

from __future__ import annotations

import base64
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from exchanges import exchange_for
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.backend import ApiSettings
from paddler_trio.balancer.apis.image_fetch import fetch_images
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.net.server.asgi import ClientGoneError, Message, Receive
from paddler_trio.net.server.input_budget import InputBudget
from paddler_trio.wire.trio.work import ConversationPrompt, Generate

MIB = 1024 * 1024


@asynccontextmanager
async def image_host(
    *headers: bytes, body: bytes, kind: bytes = b"image/png"
) -> AsyncIterator[str]:
    """Its ``host:port``; every request gets this."""
    lines = [
        b"HTTP/1.1 200 OK",
        b"Content-Type: " + kind,
        b"Content-Length: %d" % len(body),
        *headers,
    ]

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\r\n".join([*lines, b"", body]))

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def stay() -> Message:
    await trio.sleep_forever()
    raise AssertionError("unreachable")


async def fetched(host: str, receive: Receive = stay, *, name: str = "image_url") -> object:
    """The URL of the image or sound once it was fetched."""
    part = {"type": name, name: {"url": f"http://{host}/a.png"}}
    message = {"role": "user", "content": [part]}
    settings = ApiSettings(limits=ApiLimits(), image_hosts=frozenset({host}))
    work = Generate(prompt=ConversationPrompt(messages=(message,)))
    room = InputBudget().reservation()
    (found,) = await fetch_images([work], settings, room, exchange_for({}, receive))
    assert isinstance(found.prompt, ConversationPrompt)
    (message,) = found.prompt.messages
    content = message["content"]
    assert isinstance(content, list)
    return content[0][name]["url"]


async def test_an_image_is_taken_as_it_is() -> None:
    async with image_host(body=b"png") as host:
        assert await fetched(host) == f"data:image/png;base64,{base64.b64encode(b'png').decode()}"


async def test_a_sound_is_fetched_as_an_image_is_and_each_is_what_it_should_be() -> None:
    async with image_host(body=b"wav", kind=b"audio/wav") as host:
        data = base64.b64encode(b"wav").decode()
        assert await fetched(host, name="input_audio") == f"data:audio/wav;base64,{data}"
        with pytest.raises(ApiError, match="the host sent audio/wav, no image"):
            await fetched(host)
    async with image_host(body=b"png") as host:
        with pytest.raises(ApiError, match=r"input_audio\.url: the host sent image/png, no audio"):
            await fetched(host, name="input_audio")


@pytest.mark.parametrize("layers", [1, 2])
async def test_what_is_compressed_is_refused_and_never_inflated(layers: int) -> None:
    """Sixty MiB of zeros are 60 KB, and these again some hundred bytes."""
    body = bytes(60 * MIB)
    for _ in range(layers):
        body = gzip.compress(body)
    codings = b", ".join([b"gzip"] * layers)
    async with image_host(b"Content-Encoding: " + codings, body=body) as host:
        tracemalloc.start()
        try:
            with pytest.raises(ApiError, match=r"sent it compressed \(gzip"):
                await fetched(host)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 8 * MIB


async def test_nothing_is_fetched_for_a_client_that_left() -> None:
    """The host answers never; its connection ends with the client."""
    is_asked, has_ended = trio.Event(), trio.Event()

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        is_asked.set()
        assert await stream.receive_some() == b""
        has_ended.set()

    async def leave() -> Message:
        await is_asked.wait()
        return {"type": "http.disconnect"}

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        with pytest.raises(ClientGoneError):
            await fetched(f"127.0.0.1:{listener.socket.getsockname()[1]}", leave)
        await has_ended.wait()
        nursery.cancel_scope.cancel()
