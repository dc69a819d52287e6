"""Images and sounds that messages only point at: fetched from allowed hosts, else refused.

Agents take them as data URIs. What is fetched is bounded in bytes and time, follows no redirect
(the next host is not on the list) and goes through no proxy of the environment. It is taken as it
is: a response that is compressed, perhaps several times, could become any number of bytes of it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

import httpx
import trio

from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.backend import ApiSettings
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.h11_bounds import bound_parsing
from paddler_trio.net.server.exchange import Exchange
from paddler_trio.net.server.input_budget import BudgetSpentError, Reservation
from paddler_trio.net.server.json_body import no_room
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.wire.trio.request_frame import MAX_WORK_BYTES
from paddler_trio.wire.trio.work import ConversationPrompt, Generate

bound_parsing()

_HEADERS = {"accept": "image/*, audio/*", "accept-encoding": "identity"}


async def fetch_images(
    works: Sequence[Generate], settings: ApiSettings, room: Reservation, exchange: Exchange
) -> Sequence[Generate]:
    """Return the same works with every medium as a data URI; the messages of all are the same.

    Args:
      exchange: its body was read: nothing is fetched for a client that left.

    Errors:
      ApiError: 400 for one that cannot be had, or too many of them; 413 for more of them
        than an agent is sent at once.
      HttpProblem: 503, there is no room for one.
      ClientGoneError: the client left first.
    """
    prompt = works[0].prompt
    if not isinstance(prompt, ConversationPrompt):
        return works
    places = _images(prompt.messages)
    if len(places) > settings.limits.max_images:
        raise invalid(
            f"messages show {len(places)} images and sounds, the limit max_images is "
            f"{settings.limits.max_images}",
            "messages",
        )
    pointed = [(place, image, url) for place, image, url in places if not url.startswith("data:")]
    if pointed:
        await while_connected(exchange, partial(_fetch_all, pointed, settings, room))
    return works


async def _fetch_all(
    pointed: Sequence[tuple[str, Json, str]], settings: ApiSettings, room: Reservation
) -> None:
    fetched_bytes = 0
    for place, image, url in pointed:
        image["url"] = fetched = await _fetched(url, place, settings, room)
        fetched_bytes += len(fetched)
        if fetched_bytes > MAX_WORK_BYTES:
            raise ApiError(
                413,
                f"{place}: what was fetched takes {fetched_bytes} bytes as data URIs, at most "
                f"{MAX_WORK_BYTES} are sent to an agent: show fewer, or smaller ones",
                param=place,
            )


def _images(messages: Sequence[Mapping[str, object]]) -> list[tuple[str, Json, str]]:
    """Return every image and sound with its path and its URL; they are our own copies and may be
    changed."""
    found: list[tuple[str, Json, str]] = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for number, part in enumerate(content):
            match part:
                case {"image_url": {"url": str(url)} as image}:
                    place = f"messages[{index}].content[{number}].image_url.url"
                    found.append((place, image, url))
                case {"input_audio": {"url": str(url)} as sound}:
                    place = f"messages[{index}].content[{number}].input_audio.url"
                    found.append((place, sound, url))
    return found


async def _fetched(url: str, place: str, settings: ApiSettings, room: Reservation) -> str:
    _must_be_allowed(url, place, settings)
    limits = settings.limits
    try:
        with trio.fail_after(limits.fetch_timeout_s):
            async with (
                httpx.AsyncClient(trust_env=False, timeout=limits.fetch_timeout_s) as http,
                http.stream("GET", url, headers=_HEADERS) as answer,
            ):
                if answer.status_code != 200:
                    raise invalid(f"{place}: the host answered {answer.status_code}", place)
                kind = answer.headers.get("content-type", "").partition(";")[0].strip()
                wanted = "audio" if place.endswith(".input_audio.url") else "image"
                if not kind.startswith(f"{wanted}/"):
                    raise invalid(f"{place}: the host sent {kind or 'no type'}, no {wanted}", place)
                coding = answer.headers.get("content-encoding", "identity").strip().lower()
                if coding != "identity":
                    raise invalid(
                        f"{place}: the host sent it compressed ({coding[:40]}), it is taken "
                        "without",
                        place,
                    )
                data = bytearray()
                async for piece in answer.aiter_raw():
                    room.grow(len(piece) * 4 // 3)  # as base64 it stays
                    data += piece
                    if len(data) > limits.max_image_bytes:
                        raise invalid(
                            f"{place}: it is over the limit max_image_bytes of "
                            f"{limits.max_image_bytes}",
                            place,
                        )
    except BudgetSpentError as spent:
        raise no_room(spent) from spent
    except trio.TooSlowError as error:
        message = f"{place}: not there after fetch_timeout_s of {limits.fetch_timeout_s:g} s"
        raise invalid(message, place) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise invalid(f"{place}: {str(error) or type(error).__name__}", place) from error

    return await room.off_loop(lambda: f"data:{kind};base64,{base64.b64encode(data).decode()}")


def _must_be_allowed(url: str, place: str, settings: ApiSettings) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise invalid(f"{place} is no address: {error}", place) from error
    if parts.scheme not in {"http", "https"}:
        raise invalid(
            f"{place} has the scheme {parts.scheme[:20]!r}; send it as a data: URI", place
        )
    names = {host, f"{host}:{port}"} if port is not None else {host}
    if not names & settings.image_hosts:
        raise ApiError(
            400,
            f"{place} is on {host[:200]!r}, from which nothing is fetched; send a data: URI, "
            "or have the operator allow it with --image-host",
            param=place,
            code="image_host_not_allowed",
        )
