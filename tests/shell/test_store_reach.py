"""What an agent's credential opens of the model store: files of models that others named."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from store_world import hub_path, served_over_http, store_world, url_path

from hub_server import HubServer, Misbehaviour, Repository, hub_server, sha256
from paddler_trio.models.pushed.pushed_model import Manifest, PushedFile
from paddler_trio.net.client.download_errors import STORE_HEADER
from paddler_trio.net.joining.agent_credential import AgentIdentity
from paddler_trio.processes.model_store.store_layout import StoreLayout
from paddler_trio.processes.model_store.store_process import NOT_FETCHED
from paddler_trio.processes.model_store.store_reach import is_file_of
from paddler_trio.wire.paddler.desired_state import DesiredModel, HuggingFaceModel, UrlModel

DATA = b"GGUF" + random.Random(1).randbytes(5000)
NAME = "m-00001-of-00002.gguf"
SECOND = "m-00002-of-00002.gguf"
COMMIT = "a" * 40
WANTED = HuggingFaceModel(filename=NAME, repo_id="org/repo", revision="main")


@pytest.fixture
def hub() -> Iterator[HubServer]:
    files = {NAME: DATA, SECOND: DATA, "secret.gguf": DATA}
    with hub_server({"org/repo": Repository(files), "org/other": Repository(files)}) as hub:
        yield hub


def agent(**labels: str) -> AgentIdentity:
    async def rotate(digest: bytes, replaces: bytes) -> bool:
        return False

    return AgentIdentity("gpu", labels, rotate)


async def test_a_credential_reads_what_is_desired_and_nothing_else(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.stored["dir/x.gguf"] = hub.stored["dir/y.gguf"] = DATA
    x, y = (f"{hub.storage_url}/storage/dir/{name}.gguf" for name in "xy")
    commit = hub.repositories["org/repo"].commit
    async with (
        store_world(tmp_path, hub) as world,
        served_over_http(world, agent(), [WANTED, UrlModel(x)]) as (address, child),
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
    ):
        for path in (
            *(hub_path(name, revision=of) for name in (NAME, SECOND) for of in ("main", commit)),
            url_path(x),
            url_path(f"{x}#sha256=" + sha256(DATA)),
        ):
            answer = await http.get(address + path)
            assert answer.content == DATA, path
        fetched = len(child.seen)
        before = len(hub.seen)
        refusals = {
            (answer.status_code, answer.text)
            for path in (
                "",
                "/",
                url_path(y),
                url_path("http://127.0.0.1:1/x.gguf"),
                "/url/%20",
                hub_path("secret.gguf"),
                hub_path(NAME, repo="org/other"),
                hub_path(NAME, revision="another"),
                "/hf/api/models/org/repo/revision/main",
                "/blobs/sha256/" + "0" * 64,
                "/manifests/sha256/" + "0" * 64,
            )
            if (answer := await http.get(address + path))
        }
        assert len(refusals) == 1, "nothing tells one refusal from another"
        ((status, text),) = refusals
        assert (status, "'gpu' opens files of the models" in text) == (403, True)
        assert (len(child.seen), len(hub.seen)) == (fetched, before), "nobody was asked"


async def test_an_agent_is_told_alike_whatever_the_server_of_a_url_did(
    hub: HubServer, tmp_path: Path
) -> None:
    """The server is another's, and redirects where it likes: nobody learns what is there."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_port = closed.getsockname()[1]
    ways = (
        Misbehaviour(status=302, headers={"Location": f"http://127.0.0.1:{closed_port}/x"}),
        Misbehaviour(status=302, headers={"Location": f"{hub.storage_url}/storage/none"}),
        Misbehaviour(status=302, headers={"Location": "http://169.254.169.254/latest"}),
        Misbehaviour(body=b"<html>a page</html>"),
        Misbehaviour(status=403),
    )
    models = [UrlModel(f"{hub.storage_url}/storage/{n}.gguf") for n in range(len(ways))]
    hub.stored |= {f"{n}.gguf": DATA for n in range(len(ways))}
    hub.misbehave = lambda seen: next(
        (way for n, way in enumerate(ways) if f"/{n}.gguf" in seen.path), None
    )
    async with (
        store_world(tmp_path, hub) as world,
        served_over_http(world, agent(), models) as (address, _),
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
    ):
        answers = {
            (answer.status_code, answer.text, answer.headers[STORE_HEADER])
            for model in models
            if (answer := await http.get(address + url_path(model.url)))
        }
    assert {text for _, text, _ in answers} == {NOT_FETCHED}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("path", "is_open"),
    [
        ("/api/v2/store/hf/org/repo/resolve/main/" + NAME, True),
        ("/api/v2/store/hf/org/repo/resolve/main/" + SECOND, True),
        ("/api/v2/store/hf/org%2Frepo/resolve/main/" + NAME, True),
        (f"/api/v2/store/hf/org/repo/resolve/{COMMIT}/{NAME}", True),
        ("/api/v2/store/hf/org/repo/resolve/dev/" + NAME, False),
        ("/api/v2/store/hf/org/repo/resolve/main/../" + NAME, False),
        ("/api/v2/store/hf/org/pinned/resolve/main/" + NAME, False),
        (f"/api/v2/store/hf/org/pinned/resolve/{COMMIT}/{NAME}", False),
        (f"/api/v2/store/hf/org/pinned/resolve/{'b' * 40}/{NAME}", True),
        ("/api/v2/store/hf%2Forg/repo/resolve/main/" + NAME, False),
        ("/api/v2/store/pins", False),
        ("/api/v2/store", False),
    ],
)
def test_what_a_path_of_the_hub_names(tmp_path: Path, path: str, is_open: bool) -> None:
    pinned = HuggingFaceModel(filename=NAME, repo_id="org/pinned", revision="b" * 40)
    assert is_file_of(StoreLayout(tmp_path), [WANTED, pinned], path) is is_open


def test_a_pushed_file_is_opened_by_the_model_that_it_belongs_to(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path)
    wanted, other = (Manifest((PushedFile("m.gguf", 7, digit * 64),), None) for digit in ("a", "b"))
    layout.manifest(wanted.sha256).parent.mkdir(parents=True)
    for manifest in (wanted, other):
        layout.manifest(manifest.sha256).write_bytes(manifest.text)
    models: list[DesiredModel] = [UrlModel(wanted.source(wanted.files[0]))]
    for manifest, is_open in ((wanted, True), (other, False)):
        for place in (
            f"manifests/sha256/{manifest.sha256}",
            f"blobs/sha256/{manifest.files[0].sha256}",
        ):
            assert is_file_of(layout, models, f"/api/v2/store/{place}") is is_open


def test_conditions_that_a_token_contradicts_cannot_be_met() -> None:
    known = agent(rack="7")
    assert known.may_meet(())
    assert known.may_meet(("rack=7", "own=yes"))
    assert known.may_meet(("agent=gpu",))
    assert not known.may_meet(("rack=8",))
    assert not known.may_meet(("own=yes", "agent=other"))
