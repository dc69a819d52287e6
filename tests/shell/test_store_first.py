"""An agent's way to a model: the balancer's store, and the source when that cannot give it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from store_world import ChildInThisProcess, StoreWorld, served_over_http, store_world

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server
from paddler_trio.agent.model.store_first import StoreAddress, StoreFirst
from paddler_trio.models.cache.url_cache import UrlFile
from paddler_trio.models.download.download_progress import DownloadProgress
from paddler_trio.models.download.model_download import FetchedModel
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import (
    AccessDeniedError,
    NotAModelError,
    ServerFailedError,
    ServerUnreachableError,
    SourceNotFoundError,
)
from paddler_trio.net.client.http_client import Timeouts
from paddler_trio.wire.paddler.agent_issue import HuggingFacePermissions
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel, UrlModel

MIB = 1 << 20
DATA = b"GGUF" + random.Random(1).randbytes(4 * MIB + 123)
MODEL = HuggingFaceModel(filename="m-Q4_K_M.gguf", repo_id="org/repo", revision="main")
TOKEN = "hf_" + "a" * 34
KEY = "pt-" + "k" * 43


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({MODEL.filename: DATA})}) as hub:
        yield hub


@attrs.define
class Agents:
    """Agents of a balancer with a store."""

    hub: HubServer
    root: Path
    world: StoreWorld
    address: str
    child: ChildInThisProcess
    sources: list[str] = attrs.field(factory=list)

    def agent(self, name: str = "agent", **more: object) -> StoreFirst:
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        key_file = folder / "key"
        key_file.write_text(KEY)
        settings = HubSettings(
            **{  # type: ignore[arg-type]
                "endpoint": self.hub.hub_url,
                "cache": folder / "hub",
                "url_cache": folder / "urls",
                "timeouts": Timeouts(connect_s=5, silence_s=5, lock_s=5, lock_poll_s=0.01),
                **more,
            }
        )
        return StoreFirst(settings, StoreAddress(self.address, key_file), self._publish)

    async def fetch(
        self, model: HuggingFaceModel | UrlModel = MODEL, name: str = "agent", **more: object
    ) -> FetchedModel:
        with trio.fail_after(60):
            return await self.agent(name, **more).fetch(model)

    def _publish(self, progress: DownloadProgress | None) -> None:
        if progress is not None:
            self.sources.append(progress.source)


@asynccontextmanager
async def agents(
    hub: HubServer, root: Path, *, budget_bytes: int = 10**9, **more: object
) -> AsyncIterator[Agents]:
    async with (
        store_world(root / "store", hub, budget_bytes=budget_bytes, **more) as world,
        served_over_http(world) as (address, child),
    ):
        yield Agents(hub, root, world, address, child)


async def test_many_agents_cost_one_download_and_none_shows_its_key_to_the_hub(
    hub: HubServer, tmp_path: Path
) -> None:
    fetched: list[FetchedModel] = []
    async with agents(hub, tmp_path) as fleet:

        async def fetch(name: str) -> None:
            fetched.append(await fleet.fetch(name=name, env_token=TOKEN))

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(fetch, f"a{number}")
    assert {model.path.read_bytes() for model in fetched} == {DATA}
    assert {model.commit for model in fetched} == {hub.repositories["org/repo"].commit}
    assert hub.served_bytes == len(DATA)
    assert all("authorization" not in seen.headers for seen in hub.seen)
    sent = [dict(request.headers) for request in fleet.child.seen]
    assert all("authorization" not in headers for headers in sent), "the balancer keeps the keys"


async def test_a_url_comes_through_the_store_too(hub: HubServer, tmp_path: Path) -> None:
    hub.stored["dir/x.gguf"] = DATA
    model = UrlModel(f"{hub.storage_url}/storage/dir/x.gguf")
    async with agents(hub, tmp_path) as fleet:
        for name in ("a", "b"):
            fetched = await fleet.fetch(model, name)
            assert fetched.path.read_bytes() == DATA
            assert fetched.path.name == "x.gguf"
    assert hub.served_bytes == len(DATA)
    assert {path.parent.parent.name for path in [fetched.path]} == {"127.0.0.1"}


async def test_a_page_instead_of_a_model_is_named_and_never_kept(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.stored["m.gguf"] = DATA
    hub.misbehave = lambda seen: Misbehaviour(body=b"<!DOCTYPE html>" * 99, ignores_range=True)
    model = UrlModel(f"{hub.storage_url}/storage/m.gguf")
    async with agents(hub, tmp_path) as fleet:
        with pytest.raises(NotAModelError, match=r"it is no GGUF file.*model store") as caught:
            await fleet.fetch(model)
        assert not caught.value.is_permanent
        assert not UrlFile.of(tmp_path / "agent" / "urls", model.url).path.exists()
        assert not UrlFile.of(fleet.world.store.layout.urls, model.url).path.exists()
        hub.misbehave = lambda seen: None
        fetched = await fleet.fetch(model)
        assert fetched.path.read_bytes() == DATA


async def test_a_store_that_is_too_small_leaves_the_source(hub: HubServer, tmp_path: Path) -> None:
    async with agents(hub, tmp_path, budget_bytes=MIB) as fleet:
        assert (await fleet.fetch()).path.read_bytes() == DATA
    assert hub.served_bytes == len(DATA)


async def test_what_came_from_the_store_is_not_fetched_again_from_the_source(
    hub: HubServer, tmp_path: Path
) -> None:
    def half(seen: Seen) -> Misbehaviour:
        return Misbehaviour(drops_after=2 * MIB)

    hub.misbehave = half
    async with agents(hub, tmp_path) as fleet:
        with trio.move_on_after(20) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fleet.fetch)
                partial = tmp_path / "agent/hub/models--org--repo/.paddler-trio"
                while not list(partial.glob("*.journal")) or not _here(partial):  # noqa: ASYNC110
                    await trio.sleep(0.01)  # another process would be looked at like this
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
    hub.misbehave = lambda seen: None
    before = hub.served_bytes
    agent = fleet.agent()
    fetched = await attrs.evolve(agent, store=None).fetch(MODEL)
    assert fetched.path.read_bytes() == DATA
    assert hub.served_bytes - before < len(DATA)


def _here(folder: Path) -> bool:
    return any(b"\1" in path.read_bytes()[4096:] for path in folder.glob("*.journal"))


async def test_a_gated_repository_is_the_issue_that_the_hub_makes_of_it(
    hub: HubServer, tmp_path: Path
) -> None:
    repository = hub.repositories["org/repo"]
    repository.token, repository.is_gated = TOKEN, True
    async with agents(hub, tmp_path) as fleet:
        with pytest.raises(AccessDeniedError, match="gated") as caught:
            await fleet.fetch()
        assert caught.value.issue == HuggingFacePermissions("org/repo/main/m-Q4_K_M.gguf")
        assert caught.value.is_permanent
        fetched = await fleet.fetch(env_token=TOKEN)
        assert fetched.path.read_bytes() == DATA, "this agent has a token of its own"


async def test_the_stores_token_opens_what_agents_have_no_token_for(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.repositories["org/repo"].token = TOKEN
    async with agents(hub, tmp_path, env_token=TOKEN) as fleet:
        assert (await fleet.fetch()).path.read_bytes() == DATA
    assert {seen.headers.get("authorization") for seen in hub.seen_by_hub()} == {f"Bearer {TOKEN}"}
    assert all("authorization" not in seen.headers for seen in hub.seen_by_storage())


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Misbehaviour(status=404, headers={"X-Error-Code": "EntryNotFound"}), SourceNotFoundError),
        (Misbehaviour(status=500), ServerFailedError),
        (Misbehaviour(status=503, headers={"Retry-After": "7"}), ServerFailedError),
    ],
)
async def test_what_the_hub_refuses_is_not_tried_at_the_source_again(
    hub: HubServer, tmp_path: Path, refusal: Misbehaviour, error: type[Exception]
) -> None:
    hub.hub_misbehave = lambda seen: refusal
    async with agents(hub, tmp_path) as fleet:
        with pytest.raises(error, match="through the balancer's model store") as caught:
            await fleet.fetch()
    assert len(hub.seen) == 1
    wait_s = getattr(caught.value, "retry_after_s", None)
    assert wait_s == (7 if refusal.status == 503 else None)


async def test_wrong_bytes_of_the_hub_reach_no_agent_as_a_model(
    hub: HubServer, tmp_path: Path
) -> None:
    wrong = random.Random(9).randbytes(len(DATA))
    answers = iter([Misbehaviour(body=wrong, etag='"the same"')])
    hub.misbehave = lambda seen: next(answers, Misbehaviour(etag='"the same"'))
    fetched: list[bytes] = []
    async with agents(hub, tmp_path) as fleet:

        async def fetch(name: str) -> None:
            fetched.append((await fleet.fetch(name=name)).path.read_bytes())

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(fetch, f"a{number}")
        await fleet.world.settled()
        files = await fleet.world.store.files()
    assert fetched == [DATA] * 3
    assert hub.served_bytes <= 3 * len(DATA), "once wrong, once right, and not for each of them"
    assert sorted(file.is_whole for file in files) == [False, True], "one is quarantined"


async def test_a_store_without_a_way_out_leaves_the_source(hub: HubServer, tmp_path: Path) -> None:
    async with agents(hub, tmp_path, endpoint="http://127.0.0.1:9") as fleet:
        assert (await fleet.fetch()).path.read_bytes() == DATA
        with pytest.raises(ServerUnreachableError, match="through the balancer's model store"):
            await fleet.fetch(name="other", endpoint="http://127.0.0.1:9")


async def test_a_store_that_starts_is_waited_for(hub: HubServer, tmp_path: Path) -> None:
    async with agents(hub, tmp_path) as fleet:
        fleet.child.refuses = 3
        fetched = await fleet.fetch(endpoint="http://127.0.0.1:9")
        assert fetched.path.read_bytes() == DATA


async def test_a_balancer_that_has_no_store_there_leaves_the_source_at_once(
    hub: HubServer, tmp_path: Path
) -> None:
    async with agents(hub, tmp_path) as fleet:
        fleet.address = fleet.address.replace("/store", "/elsewhere")
        assert (await fleet.fetch()).path.read_bytes() == DATA
    assert fleet.child.seen == []


async def test_a_url_that_is_too_long_for_a_path_goes_to_its_server(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.stored["x.gguf"] = DATA
    model = UrlModel(f"{hub.storage_url}/storage/x.gguf?signature={'s' * 7000}")
    async with agents(hub, tmp_path) as fleet:
        assert (await fleet.fetch(model)).path.read_bytes() == DATA
    assert fleet.child.seen == []


async def test_a_store_that_is_gone_for_good_leaves_the_source(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddler_trio.agent.model.store_first.PATIENCE_S", 0.1)
    async with agents(hub, tmp_path) as fleet:
        fleet.address = "http://127.0.0.1:9/api/v2/store"
        assert (await fleet.fetch()).path.read_bytes() == DATA


async def test_the_real_client_of_the_hub_takes_the_store_for_one(
    hub: HubServer, tmp_path: Path
) -> None:
    async with agents(hub, tmp_path) as fleet:
        command = [sys.executable, "-c", HF_CLIENT, f"{fleet.address}/hf", str(tmp_path / "hf")]
        ended = await trio.run_process(command, capture_stdout=True, env={**os.environ, **ALONE})
    assert await trio.Path(ended.stdout.decode().strip()).read_bytes() == DATA
    assert hub.served_bytes == len(DATA)


ALONE = {"HF_TOKEN": KEY, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
HF_CLIENT = """
import sys
from huggingface_hub import hf_hub_download
endpoint, cache = sys.argv[1:]
print(hf_hub_download("org/repo", "m-Q4_K_M.gguf", endpoint=endpoint, cache_dir=cache))
"""
