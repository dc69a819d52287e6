"""Which deployment answers a request of each API, by the model that it names and by its key."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from dispatch_world import Peer, World, world
from trio.testing import MockClock, wait_all_tasks_blocked

from exchanges import exchange_for
from paddler_trio.balancer.apis.api_router import ApiRouter
from paddler_trio.balancer.apis.api_routes import api_routers
from paddler_trio.balancer.fleet.deployments import Deployments
from paddler_trio.balancer.fleet.fleet_database import MemoryDatabase
from paddler_trio.balancer.fleet.fleet_keeper import FleetKeeper
from paddler_trio.balancer.front.inference_routes import InferenceRoutes
from paddler_trio.net.server.asgi import Message, Scope
from paddler_trio.net.server.exchange import Identity
from paddler_trio.net.server.router import Router
from paddler_trio.nursery_tree.dispatch_limits import DispatchLimits
from paddler_trio.nursery_tree.pool import Hold, PoolSettings
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.system.settings.balancer_config import BalancerConfig
from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    InferenceParameters,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.paddler.messages import AgentRequest
from paddler_trio.wire.trio.desired_state_extras import NO_EXTRAS, Extras
from paddler_trio.wire.trio.presets import Preset, TokenBounds
from paddler_trio.wire.trio.trio_link import Answer, Ask, Report, Start
from paddler_trio.wire.trio.work import ConversationPrompt, Generate, SamplingOverrides

WIDE = DispatchLimits(max_buffered=30, buffered_timeout_s=10, item_timeout_s=30)
KINDS = ("content", "reasoning", "tool_call", "undeterminable")
USAGE = {f"{kind}_tokens": 0 for kind in KINDS} | {"prompt_tokens": 3, "cached_prompt_tokens": 0}
DONE: dict[str, object] = {"Done": {"usage": USAGE}}
MESSAGES = [{"role": "user", "content": "hi"}]


@attrs.frozen
class Spec:
    """What the deployment ``coder`` serves."""

    name: str = "coder"
    aliases: tuple[str, ...] = ("qwen",)
    presets: tuple[Preset, ...] = ()
    is_empty: bool = False

    agent_state: AgentDesiredState = attrs.field(
        factory=lambda: AgentDesiredState(
            chat_template_override=None,
            inference_parameters=InferenceParameters(temperature=0.5),
            model=LocalToAgent("/models/coder-7b.gguf"),
            multimodal_projection=NoModel(),
        )
    )
    extras: Extras = NO_EXTRAS
    digest: str = "coder-digest"


@attrs.define(eq=False)
class Fleet:
    """Two deployments with an agent each, and everything that answers requests."""

    here: World
    general: Peer
    coder: Peer
    states: FleetKeeper
    apis: ApiRouter
    exact: ApiRouter
    native: Router
    desired: list[Spec]
    works: list[Any] = attrs.field(factory=list, init=False)
    """What the agents were asked, as far as it is ours."""

    async def ask(
        self,
        path: str,
        body: object = None,
        *,
        key: Sequence[str] | None = None,
        exact: bool = False,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> tuple[int, Any]:
        """One request, whose agent answers at once; the status and the body."""
        sent: list[Message] = []
        whole = b"" if body is None else dumps(body)
        arriving: list[Message] = [{"type": "http.request", "body": whole, "more_body": False}]

        async def receive() -> Message:
            if arriving:
                return arriving.pop()
            await trio.sleep_forever()
            raise AssertionError

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(message)

        path, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": path,
            "query_string": query.encode(),
            "headers": [(b"content-type", b"application/json"), *headers],
        }
        exchange = exchange_for(scope, receive, send)
        if key is not None:
            exchange.identity = Identity("alice", deployments=frozenset(key))
        router = self.exact if exact else self.apis
        app = router if router.serves(path) else self.native
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer)
            await app(exchange)
            nursery.cancel_scope.cancel()
        text = b"".join(message.get("body", b"") for message in sent).decode()
        return sent[0]["status"], _parsed(text)

    async def _answer(self) -> None:
        """Both agents say their names, and answer questions with them."""
        while True:
            await wait_all_tasks_blocked()
            for name, peer in (("general", self.general), ("coder", self.coder)):
                for frame in peer.received():
                    if isinstance(frame, Ask):
                        peer.connection.questions.answer(frame.id, _answer_to(frame, name))
                    else:
                        assert isinstance(frame, Start | AgentRequest)
                        if isinstance(frame, Start):
                            self.works.append(frame.request)
                        lease = peer.lease(frame.id)
                        results: list[RawResult] = [{"ContentToken": name}, DONE]
                        lease.deliver("GeneratedToken", results, ends=True, tokens=[1])
            await trio.sleep(0.01)


def _parsed(text: str) -> Any:
    """Of one JSON document or several; the text itself if it is none."""
    try:
        lines = [json.loads(line) for line in text.splitlines() if line]
    except ValueError:
        return text
    return lines[0] if len(lines) == 1 else lines


def _answer_to(ask: Ask, name: str) -> object:
    answers = {
        "Tokenize": {"tokens": [1]},
        "Detokenize": {"text": name},
        "RenderPrompt": {"prompt": name, "num_tokens": 3},
        "DescribeModel": {"name": name, "n_ctx": 64, "n_params": 7},
    }
    return Answer(ask.id, answers[type(ask.question).__name__], None, 0)


@asynccontextmanager
async def fleet(*, is_strict: bool = False, presets: Sequence[Preset] = ()) -> AsyncIterator[Fleet]:
    async with world(WIDE) as here:
        states = FleetKeeper(MemoryDatabase(), here.dispatcher)
        general = attrs.evolve(
            BalancerDesiredState.default(), model=LocalToAgent("/models/general.gguf")
        )
        digest = await states.replace(general)
        here.dispatcher.set_deployments(
            [
                PoolSettings(name="default", aliases=("chat",), admissible=frozenset({digest})),
                PoolSettings(
                    name="coder", aliases=("qwen",), admissible=frozenset({"coder-digest"})
                ),
                PoolSettings(name="unused", admissible=frozenset({"u1"})),
            ]
        )
        desired: list[Spec] = []
        coder = Spec(presets=tuple(presets))
        named = {each.name: (coder, each) for each in presets}
        deployments = Deployments(
            here.dispatcher,
            states,
            is_strict,
            {"coder": coder}.get,
            lambda: desired,
            presets=lambda: named,
        )
        config = BalancerConfig(strict_model_names=is_strict)
        apis, exact, _ = api_routers(config, here.dispatcher, states, deployments)
        native = InferenceRoutes(here.dispatcher, states, trio.Event(), deployments).routes()
        yield Fleet(
            here,
            here.agent(serves=digest),
            here.agent(serves="coder-digest", deployment="coder", slots=2),
            states,
            apis,
            exact,
            native,
            desired,
        )


@asynccontextmanager
async def mixed_fleet() -> AsyncIterator[Fleet]:
    """``default`` in the middle of a rollout from general.gguf to coder.gguf: an agent of each."""
    async with world(WIDE) as here:
        states = FleetKeeper(MemoryDatabase(), here.dispatcher)
        digests = []
        for name in ("general", "coder"):
            model = LocalToAgent(f"/models/{name}.gguf")
            digests.append(
                await states.replace(attrs.evolve(BalancerDesiredState.default(), model=model))
            )
        here.dispatcher.set_deployments(
            [PoolSettings(name="default", admissible=frozenset(digests))]
        )
        deployments = Deployments(here.dispatcher, states, earlier=states.spec)
        apis, exact, _ = api_routers(BalancerConfig(), here.dispatcher, states, deployments)
        native = InferenceRoutes(here.dispatcher, states, trio.Event(), deployments).routes()
        agents = [here.agent(serves=digest) for digest in digests]
        yield Fleet(here, *agents, states, apis, exact, native, [])


@pytest.mark.parametrize("more", [{}, {"stream": True}])
@pytest.mark.parametrize("asked", [None, "coder", "general", "general.gguf"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/completion", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi", "store": False}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
        ("/api/chat", {"messages": MESSAGES, "stream": False}),
    ],
)
async def test_in_a_mixed_rollout_each_answer_has_the_name_of_the_model_that_wrote_it(
    path: str,
    body: dict[str, object],
    asked: str | None,
    more: dict[str, object],
    autojump_clock: MockClock,
) -> None:
    fingerprints: dict[str, set[str]] = {}

    async def client() -> None:
        named = {} if asked is None else {"model": asked}
        status, answer = await here.ask(path, body | named | more)
        assert status == 200, answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        models = set(re.findall(r'"model": ?"([^"]*)"', text))
        marks = set(re.findall(r'"system_fingerprint": ?"([^"]*)"', text))
        (name,) = {each.removesuffix(".gguf") for each in models}
        written = text
        for each in models:
            written = re.sub(rf'"model": ?"{re.escape(each)}"', "", written)
        assert [n for n in ("general", "coder") if n in written] == [name], text
        fingerprints.setdefault(name, set()).update(marks)

    async with mixed_fleet() as here:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            nursery.start_soon(client)
        assert set(fingerprints) == {"general", "coder"}, "one was answered by each"
        known = list(fingerprints.values())
        assert known[0].isdisjoint(known[1])
        _, listed = await here.ask("/v1/models/general")
        assert listed["id"] == "coder", "the model before it leads to the deployment, too"


def answered_by(body: Any) -> str:
    """The agent whose name stands in an answer of any API."""
    found = [name for name in ("general", "coder") if f'"{name}"' in json.dumps(body)]
    assert len(found) == 1, body
    return found[0]


REQUESTS: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/completion", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi", "store": False}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
    ("/detokenize", {"tokens": [1]}),
    ("/apply-template", {"messages": MESSAGES}),
    ("/api/v2/generate", {"prompt": {"Text": {"text": "hi"}}}),
    ("/api/v2/detokenize", {"tokens": [1]}),
    ("/api/v2/render_prompt", {"prompt": {"Text": {"text": "hi"}}}),
]


def without_names(body: Any) -> Any:
    """Without what repeats the name that was asked for."""
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name not in ("model", "id")}


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
async def test_the_deployment_answers_that_a_request_names(
    path: str, body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet() as here:
        for model, by in [
            ("coder", "coder"),
            ("qwen", "coder"),
            ("default", "general"),
            ("chat", "general"),
            ("general.gguf", "general"),
            ("gpt-4", "general"),
            (None, "general"),
        ]:
            named = {} if model is None else {"model": model}
            status, answer = await here.ask(path, body | named)
            assert status == 200, answer
            assert answered_by(without_names(answer)) == by, model


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
async def test_a_name_that_is_none_is_404_where_names_are_taken_strictly(
    path: str, body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet(is_strict=True) as here:
        status, answer = await here.ask(path, body | {"model": "gpt-4"})
        assert status == 404
        words = json.dumps(answer)
        assert "gpt-4" in words
        assert "coder, qwen" in words, "those that there are"
        for model in ("coder", "general", "default"):
            status, answer = await here.ask(path, body | {"model": model})
            assert status == 200, answer


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
@pytest.mark.parametrize("is_strict", [True, False])
async def test_a_key_that_is_limited_gets_no_other_deployment(
    path: str, body: dict[str, object], autojump_clock: MockClock, *, is_strict: bool
) -> None:
    async with fleet(is_strict=is_strict) as here:
        for model in ("coder", "qwen"):
            status, answer = await here.ask(path, body | {"model": model}, key=["coder"])
            assert status == 200, answer
        for model in ("default", "chat", "general", "gpt-4", None):
            named = {} if model is None else {"model": model}
            status, answer = await here.ask(path, body | named, key=["coder"])
            assert status == 404, model
            assert "general" not in json.dumps(answer).replace("model 'general'", "")
        status, _ = await here.ask(path, body | {"model": "coder"}, key=["default"])
        assert status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/continue_from_raw_prompt", {"raw_prompt": "hi", "max_tokens": 3}),
        (
            "/api/v1/generate_embedding_batch",
            {"input_batch": [{"id": "1", "content": "x"}], "normalization_method": "None"},
        ),
    ],
)
async def test_paddlers_routes_lead_to_default_and_need_a_key_for_it(
    path: str, body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet() as here:
        status, words = await here.ask(path, body, key=["coder"])
        assert status == 403
        assert "'alice' is for the deployments coder" in words
        if "raw" in path:
            status, answer = await here.ask(path, body, key=["default"])
            assert status == 200
            assert answered_by(answer) == "general"


@pytest.mark.parametrize(("key", "is_refused"), [(["coder"], True), (["default"], False)])
async def test_the_inference_socket_leads_to_default_too(
    key: list[str], autojump_clock: MockClock, *, is_refused: bool
) -> None:
    async with fleet() as here:
        request = {"ContinueFromRawPrompt": {"raw_prompt": "hi", "max_tokens": 3}}
        text = json.dumps({"Request": {"id": "r1", "request": request}})
        arriving: list[Message] = [
            {"type": "websocket.receive", "text": text},
            {"type": "websocket.connect"},
        ]
        said: list[str] = []
        answered = trio.Event()

        async def receive() -> Message:
            if arriving:
                return arriving.pop()
            await answered.wait()
            return {"type": "websocket.disconnect", "code": 1000}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            if message["type"] == "websocket.send":
                said.append(message["text"])
                if "Done" in message["text"] or "Error" in message["text"]:
                    answered.set()

        scope: Scope = {
            "type": "websocket",
            "path": "/api/v1/inference_socket",
            "headers": [],
        }
        identity = Identity("alice", deployments=frozenset(key))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here._answer)
            await here.native(exchange_for(scope, receive, send, identity=identity))
            nursery.cancel_scope.cancel()
        assert ('"code":403' in said[0]) == is_refused
        assert ("general" in said[0]) == (not is_refused)


async def test_the_list_has_all_deployments_with_a_model_and_their_state(
    autojump_clock: MockClock,
) -> None:
    async with fleet() as here:
        status, body = await here.ask("/v1/models")
        assert status == 200
        listed = {each["id"]: each for each in body["data"]}
        assert list(listed) == ["chat", "coder", "unused"]
        assert listed["chat"]["aliases"] == ["general.gguf", "general"]
        assert listed["coder"]["aliases"] == ["qwen"]
        assert [each["status"] for each in listed.values()] == [
            {"value": "loaded"},
            {"value": "loaded"},
            {"value": "unloaded"},
        ]
        assert listed["coder"]["meta"]["n_ctx"] == 64
        modalities = {"input_modalities": ["text"], "output_modalities": ["text"]}
        assert listed["coder"]["architecture"] == modalities
        assert listed["unused"]["meta"] is None
        assert [each["name"] for each in body["models"]] == list(listed)
        coder = here.coder.connection
        for phase, value in [
            ("loading", {"value": "loading"}),
            ("failed", {"value": "unloaded", "failed": True}),
            ("waiting", {"value": "unloaded"}),
        ]:
            coder.report = Report(phase, "c2", None, None, None, None)
            coder.refresh_readiness()
            here.here.dispatcher.update(coder)
            status, body = await here.ask("/v1/models/qwen")
            assert (status, body["id"], body["status"]) == (200, "coder", value)
        here.here.dispatcher.hold("unused", Hold("loading unused", trio.current_time() + 9))
        assert (await here.ask("/v1/models/unused"))[1]["status"] == {"value": "loading"}


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        ("loading", {"value": "loading"}),
        ("failed", {"value": "unloaded", "failed": True}),
    ],
)
async def test_a_model_is_not_listed_as_loaded_while_the_one_before_it_answers(
    phase: str, status: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet() as here:
        before = here.states.digest
        general = here.general.connection
        digest = await here.states.replace(
            attrs.evolve(BalancerDesiredState.default(), model=LocalToAgent("/models/better.gguf"))
        )
        here.here.dispatcher.add_deployment(
            PoolSettings(name="default", admissible=frozenset({before, digest}))
        )
        general.report = Report(phase, digest, before, "m", None, None)
        general.refresh_readiness()
        here.here.dispatcher.update(general)
        assert general.is_accepting, "it answers with the model before"
        _, listed = await here.ask("/v1/models/better")
        assert (listed["status"], listed["meta"]) == (status, None)
        _, props = await here.ask("/props")
        assert props["default_generation_settings"]["n_ctx"] == 64, "of what answers"
        general.report = Report("serving", digest, digest, "m", None, None)
        general.refresh_readiness()
        here.here.dispatcher.update(general)
        _, listed = await here.ask("/v1/models/better")
        assert (listed["status"], listed["meta"]["n_ctx"]) == ({"value": "loaded"}, 64)


async def test_the_exact_list_has_what_openai_has_and_a_key_sees_only_its_own(
    autojump_clock: MockClock,
) -> None:
    async with fleet() as here:
        _, body = await here.ask("/v1/models", exact=True)
        assert [set(each) for each in body["data"]] == [{"id", "object", "created", "owned_by"}] * 3
        for exact in (True, False):
            _, body = await here.ask("/v1/models", key=["coder"], exact=exact)
            assert [each["id"] for each in body["data"]] == ["coder"]
            status, _ = await here.ask("/v1/models/general", key=["coder"], exact=exact)
            assert status == 404


@pytest.mark.thorough
@pytest.mark.parametrize("exact", [True, False])
async def test_clients_of_anthropics_are_sent_its_list(
    autojump_clock: MockClock, *, exact: bool
) -> None:
    from anthropic.pagination import SyncPage  # slow: only here
    from anthropic.types import ModelInfo

    async with fleet() as here:
        headers = [(b"anthropic-version", b"2023-06-01")]
        _, body = await here.ask("/v1/models", exact=exact, headers=headers)
        page = SyncPage[ModelInfo].model_validate(body, strict=False)
        assert [each.id for each in page.data] == ["chat", "coder", "unused"]
        assert not page.has_next_page()
        _, body = await here.ask("/v1/models/qwen", exact=exact, headers=headers)
        assert ModelInfo.model_validate(body).display_name == "coder"


async def test_a_list_loads_nothing(autojump_clock: MockClock) -> None:
    async with fleet() as here:
        coder = here.coder.connection
        coder.report = Report("draining", "c2", None, None, None, None)
        coder.refresh_readiness()
        here.here.dispatcher.update(coder)
        ordinal = here.here.dispatcher.pools_changed.ordinal
        assert (await here.ask("/v1/models"))[0] == 200
        assert here.here.dispatcher.pools_changed.ordinal == ordinal


async def test_what_a_deployment_serves_shows_in_its_answers(autojump_clock: MockClock) -> None:
    async with fleet() as here:
        body = {"messages": MESSAGES}
        _, general = await here.ask("/v1/chat/completions", body)
        _, coder = await here.ask("/v1/chat/completions", body | {"model": "qwen"})
        assert (general["model"], coder["model"]) == ("chat", "qwen")
        assert coder["system_fingerprint"] == "bcoder-digest"[:13]
        assert general["system_fingerprint"] != coder["system_fingerprint"]
        _, props = await here.ask("/props?model=coder")
        assert props["total_slots"] == 2
        assert props["model_alias"] == "coder"
        assert props["default_generation_settings"]["params"]["temperature"] == 0.5
        assert len((await here.ask("/slots?model=coder"))[1]) == 2
        assert len((await here.ask("/slots"))[1]) == 1
        assert (await here.ask("/api/v2/model?model=coder"))[1]["name"] == "coder"
        assert (await here.ask("/api/v2/model"))[1]["name"] == "general"


@pytest.mark.parametrize("model", [7, ["coder"], "x" * 513])
async def test_what_cannot_be_a_name_is_refused_with_its_place(
    model: object, autojump_clock: MockClock
) -> None:
    async with fleet() as here:
        body = {"prompt": {"Text": {"text": "hi"}}, "model": model}
        status, words = await here.ask("/api/v2/generate", body)
        assert status == 400
        assert "model" in words
        status, words = await here.ask(
            "/v1/chat/completions", {"messages": MESSAGES, "model": model}
        )
        assert status == 400


@pytest.mark.parametrize("model", ["gpt-4", "default", "chat", None])
async def test_a_default_without_a_model_answers_nothing_where_others_do(
    model: str | None, autojump_clock: MockClock
) -> None:
    async with fleet() as here:
        states = here.states
        await states.replace(BalancerDesiredState.default())
        named = {} if model is None else {"model": model}
        status, answer = await here.ask("/v1/chat/completions", {"messages": MESSAGES} | named)
        assert status == 404
        assert "served is: coder, qwen, unused" in answer["error"]["message"]


@pytest.mark.parametrize("asked", ["late", "later"])
async def test_what_was_desired_a_moment_ago_is_answered_by_nothing_else(
    asked: str, autojump_clock: MockClock
) -> None:
    async with fleet() as here:
        late = Spec(name="late", aliases=("later",), digest="l1")
        here.desired.append(late)

        async def arrives() -> None:
            await trio.sleep(5)
            here.coder = here.here.agent(serves="l1", deployment="late")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrives)
            body = {"messages": MESSAGES, "model": asked}
            status, answer = await here.ask("/v1/chat/completions", body)
        assert (status, answered_by(without_names(answer))) == (200, "coder")
        listed = (await here.ask("/v1/models"))[1]["data"]
        assert [each["id"] for each in listed] == ["chat", "coder", "unused", "late"]


# ------------------------------------------------------------------------- while none serves


async def test_a_stream_hears_why_it_waits_and_a_refusal_says_when_to_come_again(
    autojump_clock: MockClock,
) -> None:
    async with fleet() as here:
        dispatcher = here.here.dispatcher
        dispatcher.leave(here.coder.connection)
        now_s = trio.current_time()
        dispatcher.hold("coder", Hold("coder is\nloading on a2", now_s + 30))

        async def arrives() -> None:
            await trio.sleep(31)
            here.coder = here.here.agent(serves="coder-digest", deployment="coder")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrives)
            body = {"messages": MESSAGES, "model": "coder", "stream": True}
            status, text = await here.ask("/v1/chat/completions", body)
        assert status == 200
        told = re.findall(
            r": queued position=0 expected_start_s=(\S+) coder is loading on a2\n", text
        )
        assert len(told) >= 10
        assert [float(each) for each in told[:3]] == [29.0, 27.0, 25.0]
        assert '"content":"coder"' in text


async def test_a_question_waits_for_a_deployment_that_is_loaded_for_it(
    autojump_clock: MockClock,
) -> None:
    async with fleet() as here:
        dispatcher = here.here.dispatcher
        demanded: list[int] = []

        async def load() -> None:
            """As on demand: something waits, so the model is loaded."""
            ordinal = dispatcher.pools_changed.ordinal
            while not dispatcher.pools.demand()["unused"].waiting:
                ordinal = await dispatcher.pools_changed.wait_beyond(ordinal)
            demanded.append(dispatcher.pools.demand()["unused"].waiting)
            dispatcher.hold("unused", Hold("loading unused", trio.current_time() + 20))
            await trio.sleep(25)
            here.coder = here.here.agent(serves="u1", deployment="unused")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            status, answer = await here.ask("/detokenize", {"tokens": [1], "model": "unused"})
        assert (status, answer, demanded) == (200, {"content": "coder"}, [1])
        assert dispatcher.pools.demand()["unused"].waiting == 0


async def test_a_question_of_a_deployment_that_nothing_loads_is_refused_in_time(
    autojump_clock: MockClock,
) -> None:
    async with fleet() as here:
        here.here.dispatcher.hold("unused", Hold("no room", trio.current_time() + 20))
        began_s = trio.current_time()
        status, answer = await here.ask("/detokenize", {"tokens": [1], "model": "unused"})
        assert status == 503
        assert "no room" in json.dumps(answer)
        assert 30 <= trio.current_time() - began_s < 31


# ----------------------------------------------------------------------------------- presets

TERSE = Preset(
    name="terse:8b",
    sampling=SamplingOverrides(temperature=0.25),
    stop=("END",),
    max_tokens=TokenBounds(default=7),
    forced=("temperature",),
    ignore=("user",),
    refuse=("logit_bias",),
)
POLITE = Preset(name="polite", system="Be kind.")
ASKING = [each for each in REQUESTS if "tokenize" not in each[0]]


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=[path for path, _ in REQUESTS])
@pytest.mark.parametrize("is_strict", [True, False])
async def test_a_preset_is_a_model_of_its_own(
    path: str, body: dict[str, object], autojump_clock: MockClock, *, is_strict: bool
) -> None:
    async with fleet(is_strict=is_strict, presets=[TERSE, POLITE]) as here:
        for key in (None, ["terse:8b"], ["coder"]):
            status, answer = await here.ask(path, body | {"model": "terse:8b"}, key=key)
            assert status == 200, answer
            assert answered_by(without_names(answer)) == "coder"
            assert answer.get("model", "terse:8b") == "terse:8b" if isinstance(answer, dict) else 1
        for model, key in [("terse:8b", ["polite"]), ("terse:8b", ["default"])]:
            status, answer = await here.ask(path, body | {"model": model}, key=key)
            assert status == (404 if is_strict or key == ["polite"] else 200)
            if status == 200:
                assert answered_by(without_names(answer)) == "general", "as any unknown name"
        status, _ = await here.ask(path, body | {"model": "coder"}, key=["terse:8b"])
        assert status == 404, "a key for a preset is for nothing else"
        for work in here.works[:3]:
            assert isinstance(work, Generate)
            assert (work.sampling.temperature, work.stop) == (0.25, ("END",))
            assert work.max_tokens == (4 if "messages" in path else 7)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(each for each in ASKING if "api/v2" not in each[0] and "template" not in each[0]),
        ("/api/chat", {"messages": MESSAGES, "stream": False}),
        ("/api/generate", {"prompt": "hi", "stream": False}),
    ],
)
async def test_filters_hold_on_every_api(
    path: str, body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet(presets=[TERSE]) as here:
        body = body | {"model": "terse:8b"}
        status, answer = await here.ask(path, body | {"user": 9})
        assert status == 200, f"it would be of a wrong type: {answer}"
        status, answer = await here.ask(path, body | {"logit_bias": {"1": 1}})
        assert status == 400
        assert "the model 'terse:8b' refuses it" in json.dumps(answer)
        status, _ = await here.ask(path, body | {"logit_bias": {"1": 1}}, key=["default"])
        assert status == 200, "a key that may not use it does not hear of it"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": "hi", "store": False}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
        ("/api/chat", {"messages": MESSAGES, "stream": False}),
        ("/api/generate", {"prompt": "hi", "stream": False}),
    ],
)
async def test_a_conversation_begins_with_the_presets_text(
    path: str, body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet(presets=[POLITE]) as here:
        status, answer = await here.ask(path, body | {"model": "polite"})
        assert (status, answer["model"]) == (200, "polite")
        (work,) = here.works
        assert isinstance(work.prompt, ConversationPrompt)
        assert [each["role"] for each in work.prompt.messages] == ["system", "user"]
        assert work.prompt.messages[0]["content"] == "Be kind."


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/completion", {"prompt": "hi"}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/api/generate", {"prompt": "hi", "raw": True}),
        ("/api/v2/generate", {"prompt": {"Text": {"text": "hi"}}}),
    ],
)
async def test_a_prompt_that_is_not_rendered_does_not_go_past_the_presets_text(
    path: str, body: dict[str, object], autojump_clock: MockClock
) -> None:
    async with fleet(presets=[POLITE]) as here:
        status, answer = await here.ask(path, body | {"model": "polite"}, key=["polite"])
        assert status == 400
        assert "the model 'polite' has a system text" in json.dumps(answer)
        assert here.works == []


async def test_presets_are_listed_where_models_are(autojump_clock: MockClock) -> None:
    async with fleet(presets=[TERSE, POLITE]) as here:
        for exact in (True, False):
            _, body = await here.ask("/v1/models", exact=exact)
            names = [each["id"] for each in body["data"]]
            assert names == ["chat", "coder", "terse:8b", "polite", "unused"]
            _, body = await here.ask("/v1/models", key=["polite"], exact=exact)
            assert [each["id"] for each in body["data"]] == ["polite"]
            for name, status in [("polite", 200), ("coder", 404), ("terse:8b", 404)]:
                found = await here.ask(f"/v1/models/{name}", key=["polite"], exact=exact)
                assert found[0] == status, name
        _, body = await here.ask("/api/tags")
        models = {each["name"]: each for each in body["models"]}
        assert list(models) == [
            *("chat:latest", "coder:latest", "terse:8b", "polite:latest", "unused:latest")
        ]
        assert len({each["digest"] for each in models.values()}) == 5
        _, shown = await here.ask("/api/show", {"model": "polite"})
        assert shown["system"] == "Be kind."
        assert 'SYSTEM """Be kind."""' in shown["modelfile"]
        _, shown = await here.ask("/api/show", {"model": "terse:8b"})
        assert "temperature                    0.25" in shown["parameters"]
        _, props = await here.ask("/props?model=terse:8b")
        assert props["default_generation_settings"]["params"]["temperature"] == 0.25
        assert props["model_alias"] == "terse:8b"
        _, answer = await here.ask("/api/chat", {"model": "polite:latest", "messages": MESSAGES})
        assert answer[-1]["model"] == "polite:latest"


async def test_answers_under_two_presets_are_not_compared(autojump_clock: MockClock) -> None:
    async with fleet(presets=[TERSE, POLITE]) as here:
        prints = set()
        for model in ("coder", "terse:8b", "polite"):
            body = {"messages": MESSAGES, "model": model}
            prints.add((await here.ask("/v1/chat/completions", body))[1]["system_fingerprint"])
        assert len(prints) == 3
