"""Tell how far a model is that ``/api/pull`` has fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import trio

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.ollama.ollama_answers import NDJSON_HEADERS, line
from paddler_trio.balancer.apis.ollama.pulls import Pulls
from paddler_trio.net.server.streaming import body_writer, while_client_stays, while_connected

_FAILED: Final = frozenset({"paused", "rolling_back", "rolled_back", "aborted"})


async def follow(
    backend: Backend, exchange: ApiExchange, pulls: Pulls, name: str, *, is_stream: bool
) -> None:
    """Answer with how far a model is until it is loaded, or cannot be.

    Errors:
      ApiError: 502 without a stream; a stream that has begun ends with the reason.
    """
    if not is_stream:
        told = await while_connected(exchange.http, partial(_last_of, backend, pulls, name))
        if "error" in told:
            raise ApiError(502, str(told["error"]))
        await exchange.send_json(200, told)
        return
    await exchange.begin(200, NDJSON_HEADERS)
    async with while_client_stays(exchange.http):
        write = body_writer(exchange.http)
        await write(line({"status": "pulling manifest"}))
        told = {}
        while not _is_end(told):
            ordinal = pulls.rollouts.changes.ordinal
            told = {}
            for told in _steps(backend, pulls, name):
                await write(line(told))
            if not _is_end(told):
                await _news(backend, pulls, ordinal)
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


async def _last_of(backend: Backend, pulls: Pulls, name: str) -> Mapping[str, Any]:
    while True:
        ordinal = pulls.rollouts.changes.ordinal
        *_, told = _steps(backend, pulls, name)
        if _is_end(told):
            return told
        await _news(backend, pulls, ordinal)


async def _news(backend: Backend, pulls: Pulls, ordinal: int) -> None:
    """Wait until the fleet is another, or the client should hear something."""
    with trio.move_on_after(backend.limits.keep_alive_s):
        await pulls.rollouts.changes.wait_beyond(ordinal)


def _is_end(told: Mapping[str, Any]) -> bool:
    return "error" in told or told.get("status") == "success"


def _steps(backend: Backend, pulls: Pulls, name: str) -> Iterator[Mapping[str, Any]]:
    """Return what there is to tell now, the end last: files that are fetched, or what it waits
    for."""
    found = backend.deployments.find_preset(name)
    if found is None:
        yield {"error": f"{name} was taken away while it was fetched"}
        return
    served = backend.deployments.of_preset(found)
    if backend.deployments.status(served)[0] == "loaded":
        yield {"status": "success"}
        return
    rollout = pulls.rollout(found.deployment)
    if rollout is not None and rollout["phase"] in _FAILED:
        yield {"error": rollout["reason"] or f"its rollout is {rollout['phase']}"}
        return
    agents = () if rollout is None else rollout["agents"]
    fetched = [each["download"] for each in agents if each["download"] is not None]
    for download in fetched:
        counts = {"completed": download["current_bytes"]}
        if download["total_bytes"] is not None:
            counts["total"] = download["total_bytes"]
        file = download["filename"]
        yield {"status": f"pulling {file}", "digest": served.digest, **counts}
    if not fetched:
        reason = None if rollout is None else rollout["waits_for"] or rollout["reason"]
        phases = sorted({str(each["phase"]) for each in agents})
        waits = reason or ", ".join(phases) or "waiting for an agent"
        yield {"status": f"{waits}"}
