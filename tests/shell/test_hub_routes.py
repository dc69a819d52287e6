"""Operators see what a repository of the hub has; a hub on this machine answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server
from paddler_trio.balancer.assembly.port_apps import AnsweredHubModels
from paddler_trio.balancer.front.hub_routes import HubRoutes
from paddler_trio.errors import ConfigurationError
from paddler_trio.models.hub.hub_lookup import FRESH_S, LOOKUP_S, MAX_AT_ONCE, HubLookup
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.router import Router

TOKEN = "hf_" + "a" * 34
FILES = {
    "README.md": b"",
    "m-Q8_0.gguf": b"eight",
    "m-Q4_K_M-00001-of-00002.gguf": b"one",
    "m-Q4_K_M-00002-of-00002.gguf": b"second",
    "mmproj-F16.gguf": b"sees",
}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    repositories = {
        "org/model": Repository(FILES),
        "org/hidden": Repository(FILES, token=TOKEN),
        "org/gated": Repository(FILES, token=TOKEN, is_gated=True),
        "org/text": Repository({"README.md": b""}),
    }
    with hub_server(repositories) as hub:
        yield hub


def routes(hub: HubServer, *, token: str | None = None, offline: bool = False) -> Router:
    settings = HubSettings(
        endpoint=hub.hub_url,
        cache=Path("/nowhere"),
        url_cache=Path("/nowhere"),
        env_token=token,
        offline=offline,
    )
    router = Router()
    HubRoutes(AnsweredHubModels(HubLookup(lambda: settings))).add_to(router)
    return router


async def nothing_to_receive() -> Message:
    await trio.sleep_forever()
    raise AssertionError


async def ask(router: Router, query: str) -> tuple[int, str]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        messages.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v2/hub/models",
        "query_string": query.encode(),
        "headers": [],
    }
    await router(exchange_for(scope, nothing_to_receive, send))
    return messages[0]["status"], b"".join(m.get("body", b"") for m in messages).decode()


async def test_a_repository_has_its_quantisations_with_sizes_and_its_projections(
    hub: HubServer,
) -> None:
    status, text = await ask(routes(hub), "repo=org%2Fmodel")
    assert status == 200
    first, second = (f"m-Q4_K_M-0000{n}-of-00002.gguf" for n in (1, 2))
    assert json.loads(text) == {
        "repo": "org/model",
        "revision": "main",
        "commit": hub.repositories["org/model"].commit,
        "quantizations": [
            {
                "name": "Q8_0",
                "files": [{"path": "m-Q8_0.gguf", "size_bytes": 5}],
                "size_bytes": 5,
                "is_default": False,
            },
            {
                "name": "Q4_K_M",
                "files": [{"path": first, "size_bytes": 3}, {"path": second, "size_bytes": 6}],
                "size_bytes": 9,
                "is_default": True,
            },
        ],
        "projections": [{"path": "mmproj-F16.gguf", "size_bytes": 4}],
    }


async def test_a_repository_without_models_has_none(hub: HubServer) -> None:
    status, text = await ask(routes(hub), "repo=org/text&revision=main")
    assert (status, json.loads(text)["quantizations"]) == (200, [])


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("", 400, "repo is missing"),
        ("repo=", 400, "repo is missing"),
        ("repo=org/model&endpoint=http://evil", 400, "'endpoint' is no parameter"),
        ("&".join(f"a{n}=1" for n in range(9)), 400, "more than 8 parameters"),
        ("repo=http://evil/x", 400, "no name of a repository"),
        ("repo=../../x", 400, "no name of a repository"),
        ("repo=org/model&revision=../x", 400, "no name of a revision"),
        (f"repo=org/model&revision={'x' * 257}", 400, "257 characters, the limit is 256"),
        ("repo=org/none", 404, "org/none: no such repository, or a private one"),
        ("repo=org/model&revision=gone", 404, "no such revision"),
    ],
)
async def test_what_cannot_be_looked_up_says_why(
    hub: HubServer, query: str, status: int, words: str
) -> None:
    answered, text = await ask(routes(hub), query)
    assert answered == status
    assert words in text


async def test_a_token_of_this_machine_opens_a_repository(hub: HubServer) -> None:
    assert (await ask(routes(hub, token=TOKEN), "repo=org/hidden"))[0] == 200
    wrong, text = await ask(routes(hub, token="hf_wrong"), "repo=org/hidden")
    assert wrong == 404
    assert "hf_wrong" not in text


@pytest.mark.parametrize(
    ("odd", "status", "words"),
    [
        (Misbehaviour(status=401), 403, "asks for a token (401)"),
        (Misbehaviour(status=403, headers={"X-Error-Code": "GatedRepo"}), 403, "is gated"),
        (Misbehaviour(status=500), 502, "answered 500"),
        (Misbehaviour(status=200), 502, "sent no list of the repository's files"),
        (Misbehaviour(status=307, headers={"Location": "/api/models/org/model"}), 502, "circle"),
    ],
)
async def test_what_the_hub_refuses_has_a_status_and_a_reason(
    hub: HubServer, odd: Misbehaviour, status: int, words: str
) -> None:
    hub.hub_misbehave = lambda seen: None if seen.path.endswith("org/model") else odd
    if odd.status == 307:
        hub.hub_misbehave = lambda seen: odd
    answered, text = await ask(routes(hub), "repo=org/model")
    assert answered == status
    assert words in text


async def test_a_hub_that_is_away_or_not_asked_is_502(hub: HubServer) -> None:
    status, text = await ask(routes(hub, offline=True), "repo=org/model")
    assert (status, hub.seen) == (502, [])
    assert "HF_HUB_OFFLINE" in text
    hub.hub_url = "http://127.0.0.1:9"
    assert (await ask(routes(hub), "repo=org/model"))[0] == 502

    def unreadable() -> HubSettings:
        raise ConfigurationError("HF_ENDPOINT is 'x', not a URL")

    router = Router()
    HubRoutes(AnsweredHubModels(HubLookup(unreadable))).add_to(router)
    status, text = await ask(router, "repo=org/model")
    assert (status, text) == (502, "org/model: HF_ENDPOINT is 'x', not a URL")


async def test_a_hub_that_does_not_answer_is_given_up(
    hub: HubServer, mock_clock: MockClock
) -> None:
    asked = threading.Event()

    def silent(seen: Seen) -> Misbehaviour:
        asked.set()
        return Misbehaviour(waits_for=hub.closing)

    hub.hub_misbehave = silent
    router, answers = routes(hub), list[tuple[int, str]]()

    async def look() -> None:
        answers.append(await ask(router, "repo=org/model"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.to_thread.run_sync(asked.wait)
        mock_clock.jump(LOOKUP_S)
    ((status, text),) = answers
    assert status == 504
    assert text == "the hub did not answer about org/model within 20 s"


async def test_an_answer_is_kept_for_a_minute(hub: HubServer, mock_clock: MockClock) -> None:
    router = routes(hub)
    answer = await ask(router, "repo=org/model")
    mock_clock.jump(FRESH_S - 1)
    assert await ask(router, "repo=org/model") == answer
    assert len(hub.seen) == 1
    mock_clock.jump(1)
    assert await ask(router, "repo=org/model") == answer
    assert len(hub.seen) == 2


async def test_those_who_ask_for_the_same_ask_once_and_lookups_are_few_at_a_time(
    hub: HubServer,
) -> None:
    goes_on, arrived = threading.Event(), threading.Semaphore(0)

    def slow(seen: Seen) -> None:
        arrived.release()
        assert goes_on.wait(30)

    hub.hub_misbehave = slow
    for number in range(MAX_AT_ONCE + 2):
        hub.repositories[f"org/m{number}"] = Repository(FILES)
    lookup = HubLookup(lambda: HubSettings(endpoint=hub.hub_url, cache=Path(), url_cache=Path()))
    async with trio.open_nursery() as nursery:
        for number in range(MAX_AT_ONCE + 2):
            for _ in range(3):
                nursery.start_soon(lookup.models, f"org/m{number}", "main")
        for _ in range(MAX_AT_ONCE):
            await trio.to_thread.run_sync(arrived.acquire)
        await wait_all_tasks_blocked(0.05)
        assert len(hub.seen) == MAX_AT_ONCE
        goes_on.set()
    assert len(hub.seen) == MAX_AT_ONCE + 2
    assert repr(lookup) == f"<HubLookup: {MAX_AT_ONCE + 2} repositories kept, 0 asked for>"


async def test_the_next_one_asks_if_the_first_one_leaves(hub: HubServer) -> None:
    goes_on, arrived = threading.Event(), threading.Semaphore(0)

    def slow(seen: Seen) -> None:
        arrived.release()
        assert goes_on.wait(30)

    hub.hub_misbehave = slow
    lookup = HubLookup(lambda: HubSettings(endpoint=hub.hub_url, cache=Path(), url_cache=Path()))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            async with trio.open_nursery() as leaving:
                leaving.start_soon(lookup.models, "org/model", "main")
                await trio.to_thread.run_sync(arrived.acquire)
                nursery.start_soon(lookup.models, "org/model", "main")
                await wait_all_tasks_blocked(0.05)
                first.cancel(reason="its client left")
        await trio.to_thread.run_sync(arrived.acquire)
        goes_on.set()
    assert len(hub.seen) == 2
    assert repr(lookup) == "<HubLookup: 1 repositories kept, 0 asked for>"
