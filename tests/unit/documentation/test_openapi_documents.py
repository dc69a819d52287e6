"""The OpenAPI documents have every route and nothing else, and their schemas say what is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from documented_blocks import DOCS, ROOT
from exchanges import exchange_for
from paddler_trio.balancer.activity.request_activity import RequestActivity
from paddler_trio.balancer.assembly.balancer_core import BalancerCore
from paddler_trio.balancer.fleet.fleet_routes import FleetOrder
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.errors import WireError
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import App
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState, HuggingFaceModel
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GbnfGrammar,
)
from paddler_trio.wire.tags import EXTERNAL_TAGS
from paddler_trio.wire.trio.cache_commands import Pull, Verify
from paddler_trio.wire.trio.desired_state_extras import ExtendedDesiredState, Extras
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState
from paddler_trio.wire.trio.model_questions import Tokenize
from paddler_trio.wire.trio.work import ConversationPrompt, Generate, RegexGrammar

sys.path.insert(0, str(ROOT / "tools"))

from document_openapi import documents
from openapi_routes import balancer_routes, management_of

TEXTS = documents()
INFERENCE = json.loads(TEXTS["inference.openapi.json"])
MANAGEMENT = json.loads(TEXTS["management.openapi.json"])

MODEL = HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main")
DESIRED = attrs.evolve(BalancerDesiredState.default(), model=MODEL)
RAW_PROMPT = ContinueFromRawPromptParams("a", 3, GbnfGrammar("g", "root"))
BODIES = [
    (INFERENCE, "/api/v1/continue_from_raw_prompt", RAW_PROMPT),
    (INFERENCE, "/api/v2/tokenize", Tokenize(text="a")),
    (
        INFERENCE,
        "/api/v2/generate",
        Generate(
            prompt=ConversationPrompt(messages=({"role": "user", "content": "a"},)),
            constraint=RegexGrammar("a+"),
            stop=("b",),
        ),
    ),
    (MANAGEMENT, "/api/v1/balancer_desired_state", DESIRED),
    (
        MANAGEMENT,
        "/api/v2/balancer_desired_state",
        ExtendedDesiredState(state=DESIRED, extras=Extras()),
    ),
    (MANAGEMENT, "/api/v2/models/pull", Pull(models=(MODEL,))),
    (MANAGEMENT, "/api/v2/models/verify", Verify(sources=("a",))),
    (
        MANAGEMENT,
        "/api/v2/fleet",
        FleetOrder(state=FleetState(deployments=(DeploymentSpec(name="coder", model=MODEL),))),
    ),
]


def routes_in(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Method and path; a WebSocket is one that answers 101."""
    return {
        ("(websocket)" if "101" in operation["responses"] else verb.upper(), path)
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
    }


def body_schema(document: dict[str, Any], path: str) -> Draft202012Validator:
    """What judges the body of the one operation of a path that takes one."""
    (operation,) = [each for each in document["paths"][path].values() if "requestBody" in each]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})


def written(value: attrs.AttrsInstance) -> Any:
    """A body as it is sent: the tag that its class has elsewhere is the route."""
    body = unstructure(value)
    if type(value) in EXTERNAL_TAGS:
        assert isinstance(body, dict)
        (body,) = body.values()
    return body


def read(body: Any, shape: Any) -> bool:
    """Whether the program accepts it."""
    tagged = {shape.__name__: body} if shape in EXTERNAL_TAGS else body
    try:
        structure(tagged, shape)
    except WireError:
        return False
    return True


def changed(value: Any) -> Iterator[Any]:
    """A JSON value with one member missing, unknown, null or of another type, at any depth."""
    if isinstance(value, dict):
        yield {**value, "unheard_of": 1}
        for name, member in value.items():
            yield {key: each for key, each in value.items() if key != name}
            yield {**value, name: None}
            yield {**value, name: {"a": [1.5]}}
            for other in changed(member):
                yield {**value, name: other}
    elif isinstance(value, list):
        for place, member in enumerate(value):
            for other in changed(member):
                yield [*value[:place], other, *value[place + 1 :]]


@pytest.mark.thorough
@pytest.mark.parametrize("document", [INFERENCE, MANAGEMENT], ids=["inference", "management"])
def test_each_document_is_openapi(document: dict[str, Any]) -> None:
    validate(document)


def test_no_route_is_missing_and_none_is_invented() -> None:
    routes = balancer_routes()
    for document, found in (
        (INFERENCE, {*routes.native, *routes.apis}),
        (MANAGEMENT, {*routes.management, *routes.store}),
    ):
        assert len(found) > 40
        assert routes_in(document) == {(verb, path.replace("...}", "}")) for verb, path in found}


def test_every_operation_has_a_name_of_its_own() -> None:
    for document in (INFERENCE, MANAGEMENT):
        names = [
            operation["operationId"]
            for operations in document["paths"].values()
            for operation in operations.values()
        ]
        assert len(names) == len(set(names))


def test_the_files_are_what_the_routers_and_types_say_today() -> None:
    for name, text in TEXTS.items():
        path = Path(DOCS / "reference" / name)
        assert path.read_text(encoding="utf-8") == text, "run tools/document_openapi.py"


async def test_what_needs_no_parameter_is_answered_as_described() -> None:
    """Status and media type; a stream is left when it has begun."""
    config, keys = BalancerConfig(), KeyRing()
    core = BalancerCore.of(config, {}, keys, RequestActivity())
    await core.states.load()
    app = management_of(config, core, keys).app()
    asked = 0
    for path, operations in MANAGEMENT["paths"].items():
        if "get" not in operations or "{" in path or path.startswith("/api/v2/store"):
            continue
        with trio.fail_after(20):
            status, media = await head_of(app, path)
        described = operations["get"]["responses"]
        assert str(status) in described, f"{path} answers {status}"
        assert media in described[str(status)]["content"], f"{path} answers {media}"
        asked += 1
    assert asked > 20


async def head_of(app: App, path: str) -> tuple[int, str]:
    """The status and the media type with which a GET is answered."""
    heads: list[tuple[int, str]] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            media = headers.get(b"content-type", b"").decode().partition(";")[0]
            heads.append((message["status"], media))
            scope.cancel()

    async def receive() -> Message:
        if asks:
            return asks.pop()
        await trio.sleep_forever()
        raise AssertionError("for ever is over")

    asks: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    request = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8060),
        "extensions": {},
        "state": {},
    }
    with trio.CancelScope() as scope:
        await app(exchange_for(request, receive, send))
    return heads[0]


@pytest.mark.parametrize(("document", "path", "value"), BODIES, ids=[each[1] for each in BODIES])
def test_a_schema_takes_what_the_program_takes(
    document: dict[str, Any], path: str, value: attrs.AttrsInstance
) -> None:
    judge, shape = body_schema(document, path), type(value)
    body = written(value)
    assert judge.is_valid(body)
    assert read(body, shape)
    others = list(changed(deepcopy(body)))
    assert len(others) >= 4
    for other in others:
        assert judge.is_valid(other) == read(other, shape), other


def test_a_conversation_of_paddler_s_may_have_parts_and_tools() -> None:
    judge = body_schema(INFERENCE, "/api/v1/continue_from_conversation_history")
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    body = {
        "add_generation_prompt": True,
        "conversation_history": [{"role": "user", "content": parts}],
        "enable_thinking": False,
        "max_tokens": 5,
        "tools": [{"type": "function", "function": function}],
    }
    for other in (body, *changed(body)):
        assert judge.is_valid(other) == read(other, ContinueFromConversationHistoryParams), other
