"""An agent whose model has to be fetched first: what it shows, serves and gives up."""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from hub_server import HubServer, Misbehaviour, Repository, hub_server, sha256
from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.children.engine_keeper import EngineKeeper
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model import model_fetch
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.agent_issue import (
    DownloadServerErrored,
    HuggingFacePermissions,
    ModelCannotBeLoaded,
    ModelDoesNotExistAtUrl,
)
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    DesiredModel,
    HuggingFaceModel,
    InferenceParameters,
    LocalToAgent,
    NoModel,
    UrlModel,
)

MIB = 1 << 20
DATA = b"GGUF" + random.Random(5).randbytes(3 * MIB + 1)
MODEL = HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main")
NAME = "org/repo/main/m.gguf"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({"m.gguf": DATA})}) as hub:
        yield hub


@attrs.define
class Engines:
    """Notes what should be loaded; each load ends with ``failure`` if there is one, or is up."""

    failure: LoadFailedError | None = None
    loads: list[LoadModel] = attrs.field(factory=list)
    on_load: Callable[[], None] = lambda: None
    comes_up: bool = False

    async def supervise(
        self, live: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        keeper = live.__self__  # type: ignore[attr-defined]
        assert isinstance(keeper, EngineKeeper)
        self.on_load()
        self.loads.append(keeper.load)
        if self.comes_up:
            keeper.first_start.set(Ready(cells=256, n_batch=8, n_ctx_train=256, n_vocab=9))
        if self.failure is None:
            await trio.sleep_forever()
        else:
            keeper.first_start.set(self.failure)


async def _never_prepared(*_: object) -> None:
    await trio.sleep_forever()


@pytest.fixture
def server(hub: HubServer, tmp_path: Path) -> ModelServer:
    return server_of(hub, tmp_path, Engines())


def server_of(hub: HubServer, root: Path, engines: Engines) -> ModelServer:
    return ModelServer(
        AgentStatus(2),
        threads=1,
        settings=EngineSettings(),
        drain_s=1,
        supervise=engines.supervise,
        supervise_preparation=_never_prepared,
        on_step=lambda step: None,
        on_engine_gone=lambda engine, reason, suspects: None,
        hub=HubSettings(
            endpoint=hub.hub_url,
            cache=root / "hub",
            url_cache=root / "urls",
            token_path=root / "token",
            timeouts=Timeouts(silence_s=100),
        ),
    )


def state(model: DesiredModel, **more: DesiredModel) -> AgentDesiredState:
    return AgentDesiredState(
        chat_template_override=None,
        inference_parameters=InferenceParameters(),
        model=model,
        multimodal_projection=more.get("projection", NoModel()),
    )


async def reach(status: AgentStatus, is_there: Callable[[AgentStatus], bool]) -> None:
    ordinal = status.changes.ordinal
    with trio.fail_after(60):
        while not is_there(status):
            ordinal = await status.changes.wait_beyond(ordinal)


async def test_a_model_is_fetched_then_loaded_and_the_snapshot_shows_how_far_it_is(
    hub: HubServer, server: ModelServer
) -> None:
    gate = threading.Event()
    hub.misbehave = lambda seen: Misbehaviour(waits_for=gate)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            server.set_desired(state(MODEL))
            await reach(server.status, lambda status: status.phase == "downloading")
            shown = server.status.snapshot()
            assert shown.download_filename == "m.gguf"
            assert (shown.download_current, shown.download_total) == (0, len(DATA))
            assert shown.download_indeterminate is False
            download = server.status.report().download
            assert download is not None
            assert (download.source, download.phase) == ("127.0.0.1", "downloading")
            assert (download.file_index, download.file_count) == (1, 1)
            gate.set()
            await reach(server.status, lambda status: status.phase == "loading")
            ended = server.status.snapshot()
            assert (ended.download_current, ended.download_total) == (0, 0)
            assert (ended.download_filename, ended.download_indeterminate) == (None, True)
            assert server.status.report().download is None
            nursery.cancel_scope.cancel()
    finally:
        gate.set()


async def test_the_old_model_stays_while_the_new_one_is_fetched_and_a_newer_state_cancels_it(
    hub: HubServer, tmp_path: Path
) -> None:
    engines = Engines()
    server = server_of(hub, tmp_path, engines)
    hub.misbehave = lambda seen: Misbehaviour(falls_silent_after=10)
    (tmp_path / "old.gguf").write_bytes(b"old")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(state(LocalToAgent(str(tmp_path / "old.gguf"))))
        await reach(server.status, lambda status: status.phase == "loading")
        old = server._places.current
        server.set_desired(state(MODEL))
        await reach(server.status, lambda status: status.phase == "downloading")
        assert server._places.current is old, "the old model's engine lives"
        began_s = trio.current_time()
        server.set_desired(state(NoModel()))
        await reach(server.status, lambda status: status.phase == "waiting")
        assert trio.current_time() - began_s < 50, "it waited for the silence to end"
        assert server.status.download is None
        nursery.cancel_scope.cancel()
    assert [load.model_path for load in engines.loads] == [str(tmp_path / "old.gguf")]


async def test_a_failed_download_is_an_issue_with_its_cause_and_the_next_attempt(
    hub: HubServer, server: ModelServer
) -> None:
    hub.hub_misbehave = lambda seen: Misbehaviour(status=500)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(state(MODEL))
        await reach(server.status, lambda status: status.phase == "failed")
        assert server.status.issues == {DownloadServerErrored(NAME)}
        assert server.status.detail is not None
        assert "answered 500; next attempt in 1 s" in server.status.detail
        hub.hub_misbehave = lambda seen: None
        await reach(server.status, lambda status: status.phase == "loading")
        nursery.cancel_scope.cancel()


async def test_a_page_instead_of_a_model_is_named_and_the_model_is_served_once_it_is_there(
    hub: HubServer, server: ModelServer, tmp_path: Path
) -> None:
    hub.stored["m.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(body=b"<!DOCTYPE html>" * 99, ignores_range=True)
    url = f"{hub.storage_url}/storage/m.gguf"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(state(UrlModel(url)))
        await reach(server.status, lambda status: status.phase == "failed")
        assert server.status.issues == {ModelDoesNotExistAtUrl(url)}
        assert "it is no GGUF file" in str(server.status.detail)
        assert "next attempt in 1 s" in str(server.status.detail)
        assert list((tmp_path / "urls").rglob("m.gguf")) == []
        hub.misbehave = lambda seen: None
        await reach(server.status, lambda status: status.phase == "loading")
        nursery.cancel_scope.cancel()
    (path,) = (tmp_path / "urls").rglob("m.gguf")
    assert path.read_bytes() == DATA


async def test_a_permanent_error_waits_for_a_token_and_no_longer(
    hub: HubServer, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.repositories["org/repo"]
    repository.token, repository.is_gated = "hf_right", True
    monkeypatch.setattr(
        model_fetch, "wait_for_retry", partial(model_fetch.wait_for_retry, poll_s=0.01)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(state(MODEL))
        await reach(server.status, lambda status: status.phase == "failed")
        assert server.status.issues == {HuggingFacePermissions(NAME)}
        assert "next attempt in 600 s" in str(server.status.detail)
        (tmp_path / "token").write_text("hf_right")
        await reach(server.status, lambda status: status.phase == "loading")
        nursery.cancel_scope.cancel()


async def test_a_model_that_will_not_load_is_hashed_again_and_fetched_anew_if_it_was_altered(
    hub: HubServer, tmp_path: Path
) -> None:
    engines = Engines(LoadFailedError("model", "no magic", "words"))
    server = server_of(hub, tmp_path, engines)
    blob = tmp_path / "hub" / "models--org--repo" / "blobs" / sha256(DATA)

    def alter() -> None:
        if not engines.loads:
            with blob.open("r+b") as file:
                file.write(b"altered")

    engines.on_load = alter
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(state(MODEL))
        await reach(server.status, lambda status: status.phase == "failed")
        nursery.cancel_scope.cancel()
    assert len(engines.loads) == 2, "once as it was altered, once fetched anew, and no more"
    assert server.status.issues == {ModelCannotBeLoaded(engines.loads[0].model_path)}
    assert hub.served_bytes == 2 * len(DATA)
    assert sha256(blob.read_bytes()) == sha256(DATA)


async def test_a_projection_that_cannot_be_had_leaves_the_model_served(
    hub: HubServer, tmp_path: Path
) -> None:
    server = server_of(hub, tmp_path, Engines(comes_up=True))
    url = UrlModel(f"{hub.storage_url}/storage/none.gguf")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        server.set_desired(state(MODEL, projection=url))
        await reach(server.status, lambda status: status.phase == "loading")
        await trio.testing.wait_all_tasks_blocked(0.02)
        model = server._places.current
        assert model is not None
        assert model.projection_error is not None
        assert model.projection_error.issue == ModelDoesNotExistAtUrl(url.url)
        nursery.cancel_scope.cancel()
