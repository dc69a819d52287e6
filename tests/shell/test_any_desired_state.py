"""An agent outlives whatever it is told to serve, and says what keeps it from doing so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.children.engine_keeper import EngineKeeper
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model import model_server
from paddler_trio.agent.model.model_errors import load_issues
from paddler_trio.agent.model.model_fetch import ModelFetch
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.pipe_codec import decode_to_engine, encode
from paddler_trio.wire.paddler.agent_issue import (
    ModelCannotBeLoaded,
    ModelFileDoesNotExist,
    MultimodalProjectionCannotBeLoaded,
    SlotCannotStart,
    UnableToFindChatTemplate,
)
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    HuggingFaceModel,
    InferenceParameters,
    KvCacheDtype,
    LocalToAgent,
    NoModel,
    UrlModel,
)
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.paddler.status import AgentStateApplicationStatus, ChatTemplate
from paddler_trio.wire.trio.adapters import Adapter
from paddler_trio.wire.trio.desired_state_extras import EngineOverrides, Extras, Markers

pytestmark = pytest.mark.thorough

NOTHING = AgentDesiredState(
    chat_template_override=None,
    inference_parameters=InferenceParameters(),
    model=NoModel(),
    multimodal_projection=NoModel(),
)
OFFLINE = HubSettings(cache=Path("/nowhere"), url_cache=Path("/nowhere"), offline=True)
PERSISTENT = AgentStateApplicationStatus.ATTEMPTED_AND_RETRYING, AgentStateApplicationStatus.STUCK

names = st.one_of(  # no half surrogate pairs: no frame with one is read
    st.text(max_size=20),
    st.sampled_from(
        ["", ".", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "/etc/passwd/x", "a\0b", "\0"]
    ),
    st.sampled_from(["/" + "a" * 300, "/a" * 3000, "a\nb", "~", "None", __file__]),
)
models: st.SearchStrategy[DesiredModel] = st.one_of(
    st.just(NoModel()),
    st.builds(LocalToAgent, names),
    st.builds(UrlModel, names),
    st.builds(HuggingFaceModel, names, names, names),
)
parameters = st.builds(
    InferenceParameters,
    n_batch=st.integers(0, 2**64 - 1),
    context_size=st.integers(0, 2**32 - 1),
    embedding_batch_size=st.integers(0, 2**64 - 1),
    enable_embeddings=st.booleans(),
    image_resize_to_fit=st.integers(0, 2**32 - 1),
    k_cache_dtype=st.sampled_from(KvCacheDtype),
    n_gpu_layers=st.integers(-(2**31), 2**31 - 1),
    penalty_last_n=st.integers(-(2**31), 2**31 - 1),
    pooling_type=st.sampled_from(PoolingType),
)
states = st.builds(
    AgentDesiredState,
    chat_template_override=st.none() | st.builds(ChatTemplate, st.text(max_size=20)),
    inference_parameters=parameters,
    model=models,
    multimodal_projection=models,
)
texts = st.text(
    alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
)
extras = st.builds(
    Extras,
    engine=st.builds(
        EngineOverrides,
        draft_model=st.none() | texts,
        lora=st.none() | st.lists(texts, max_size=3).map(tuple),
        rpc=st.none() | st.lists(texts, max_size=3).map(tuple),
        tensor_overrides=st.none() | st.lists(texts, max_size=3).map(tuple),
        prefix_store_bytes=st.none() | st.integers(0, 2**50),
    ),
    markers=st.none() | st.builds(Markers, reasoning_open=st.none() | texts),
    adapters=st.lists(st.sampled_from([LocalToAgent("/nowhere.gguf")]), max_size=2).map(
        lambda sources: tuple(
            Adapter(name=f"a{number}", source=source) for number, source in enumerate(sources)
        )
    ),
)


@attrs.define(eq=False)
class Engines:
    """In the place of engine processes: every load fails as this says, or never ends."""

    failure: LoadFailedError | None = None
    loads: list[LoadModel] = attrs.field(factory=list)

    async def supervise(
        self, live: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        keeper = live.__self__  # type: ignore[attr-defined]
        assert isinstance(keeper, EngineKeeper)
        self.loads.append(keeper.load)
        if self.failure is None:
            await trio.sleep_forever()
        else:
            keeper.first_start.set(self.failure)


def server_of(engines: Engines, *, slots: int = 2) -> ModelServer:
    return ModelServer(
        AgentStatus(slots),
        threads=1,
        settings=EngineSettings(),
        drain_s=1,
        supervise=engines.supervise,
        supervise_preparation=_no_preparation,
        on_step=lambda step: None,
        on_engine_gone=lambda engine, reason, suspects: None,
        hub=OFFLINE,
    )


async def _no_preparation(*_: object) -> None:
    await trio.sleep_forever()


async def reach(status: AgentStatus, *phases: str) -> None:
    ordinal = 0
    with trio.fail_after(60):
        while status.phase not in phases:
            ordinal = await status.changes.wait_beyond(ordinal)


@settings(max_examples=examples(150))
@given(states, extras)
def test_any_state_is_tried_or_is_an_issue_and_the_next_one_is_heard(
    state: AgentDesiredState, extras: Extras
) -> None:
    engines = Engines()
    server = server_of(engines)

    async def follow() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            server.set_desired(state, extras)
            await reach(server.status, "waiting", "loading", "failed")
            if server.status.phase == "failed":
                assert server.status.issues
                assert server.status.detail
            for load in engines.loads:
                assert decode_to_engine(encode(load)[4:]) == load
            server.set_desired(attrs.evolve(NOTHING, chat_template_override=ChatTemplate("next")))
            await reach(server.status, "waiting")
            assert server.status.application is AgentStateApplicationStatus.APPLIED
            nursery.cancel_scope.cancel()

    trio.run(follow)


async def test_a_nul_in_a_path_is_an_issue() -> None:
    for state, phase, issue in (
        (
            attrs.evolve(NOTHING, model=LocalToAgent("/a\0b")),
            "failed",
            ModelFileDoesNotExist("/a\0b"),
        ),
        (
            attrs.evolve(
                NOTHING,
                model=LocalToAgent(__file__),
                multimodal_projection=LocalToAgent("/a\0b"),
            ),
            "loading",  # it serves words without it
            None,
        ),
    ):
        server = server_of(Engines())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            server.set_desired(state)
            await reach(server.status, phase)
            assert server.status.issues == (frozenset() if issue is None else {issue})
            nursery.cancel_scope.cancel()


async def test_what_nobody_thought_of_is_an_issue_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("nobody thought of this")

    server = server_of(Engines())
    monkeypatch.setattr(ModelFetch, "model", fails)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(attrs.evolve(NOTHING, model=LocalToAgent("/m")))
        await reach(server.status, "failed")
        assert server.status.issues == {ModelCannotBeLoaded("/m")}
        assert server.status.detail == "RuntimeError: nobody thought of this"
        monkeypatch.undo()
        server.set_desired(NOTHING)
        await reach(server.status, "waiting")
        assert server.status.issues == frozenset()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("stage", "override", "issues"),
    [
        ("model", None, {ModelCannotBeLoaded(__file__)}),
        ("encoder", None, {UnableToFindChatTemplate(__file__)}),
        ("encoder", ChatTemplate("x"), {ModelCannotBeLoaded(__file__)}),
        ("context", None, {SlotCannotStart("no room", 0), SlotCannotStart("no room", 1)}),
    ],
)
async def test_issues_stay_while_the_same_state_is_tried_again(
    stage: str,
    override: ChatTemplate | None,
    issues: set[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever polls sees them at every moment, and no other state of application in between."""
    monkeypatch.setattr(model_server, "FIRST_RETRY_S", 0.001)
    engines = Engines(LoadFailedError(stage, "no room", "llama.cpp's last words"))
    server = server_of(engines)
    seen: list[tuple[object, object, object]] = []

    async def watch() -> None:
        ordinal = server.status.changes.ordinal
        while True:
            status = server.status
            seen.append((status.issues, status.application, status.detail))
            ordinal = await status.changes.wait_beyond(ordinal)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(
            attrs.evolve(NOTHING, model=LocalToAgent(__file__), chat_template_override=override)
        )
        await reach(server.status, "failed")
        nursery.start_soon(watch)
        with trio.fail_after(60):
            while len(engines.loads) < 4:
                await server.status.changes.wait_beyond(server.status.changes.ordinal)
        nursery.cancel_scope.cancel()
    assert {found for found, _, _ in seen} == {frozenset(issues)}
    assert {application for _, application, _ in seen} <= set(PERSISTENT)
    assert {detail for _, _, detail in seen} == {"no room; llama.cpp said: llama.cpp's last words"}


async def test_a_new_state_starts_without_the_issues_of_the_last_one() -> None:
    engines = Engines()
    server = server_of(engines)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(attrs.evolve(NOTHING, model=LocalToAgent("/nothing/is/here")))
        await reach(server.status, "failed")
        server.set_desired(attrs.evolve(NOTHING, model=LocalToAgent(__file__)))
        await reach(server.status, "loading")
        assert server.status.application is AgentStateApplicationStatus.FRESH
        assert server.status.issues == frozenset()
        nursery.cancel_scope.cancel()


def test_thousands_of_slots_are_some_issues_of_few_words() -> None:
    server = server_of(Engines(), slots=4096)
    load = server._rules.load(NOTHING, Extras(), model_path=__file__, projection_path=None)
    failure = LoadFailedError("context", "4096 slots", "many words " * 1000)
    issues = load_issues(failure, load, has_override=False)
    assert len(issues) == 256
    assert {issue.error for issue in issues if isinstance(issue, SlotCannotStart)} == {"4096 slots"}


async def test_a_projection_that_is_missing_is_named(tmp_path: Path) -> None:
    _, problem = await ModelFetch(OFFLINE, lambda progress: None).projection(
        attrs.evolve(NOTHING, multimodal_projection=LocalToAgent(f"{tmp_path}/a\0b"))
    )
    assert problem is not None
    assert problem.issue == MultimodalProjectionCannotBeLoaded(f"{tmp_path}/a\0b")
