"""One cache for us and for the real ``huggingface_hub``, and one download for several processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from hub_server import HubServer, Misbehaviour, Repository, Seen, hub_server, sha256
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.net.client.download_errors import ServerUnreachableError
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel

pytestmark = pytest.mark.thorough  # processes, and the hub's own client

MIB = 1 << 20
DATA = random.Random(3).randbytes(24 * MIB + 7)
SMALL = b'{"config": 1}'
MODEL = HuggingFaceModel(filename="sub/m-Q4_K_M.gguf", repo_id="org/repo", revision="main")

THEIRS = """
import json, sys
from huggingface_hub import HfApi, hf_hub_download, list_repo_files, scan_cache_dir
from huggingface_hub import utils
request = json.loads(sys.argv[1])
answer = {}
try:
    if "file" in request:
        answer["path"] = hf_hub_download("org/repo", request["file"])
    if "list" in request:
        info = HfApi().model_info("org/repo", files_metadata=True)
        answer["sha"] = info.sha
        answer["files"] = list_repo_files("org/repo")
        tree = HfApi().list_repo_tree("org/repo", recursive=True)
        answer["tree"] = [entry.path for entry in tree]
        answer["hashes"] = [s.lfs.sha256 if s.lfs else None for s in info.siblings]
    if "scan" in request:
        scan = scan_cache_dir()
        answer["warnings"] = list(map(str, scan.warnings))
        answer["repos"] = [[r.repo_id, sorted(f.file_name for v in r.revisions for f in v.files),
                            sorted(ref for v in r.revisions for ref in v.refs)] for r in scan.repos]
        answer["incomplete"] = len(scan.incomplete_files)
except Exception as error:
    answer["error"] = type(error).__name__
print(json.dumps(answer))
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    files = {MODEL.filename: DATA, "config.json": SMALL}
    with hub_server({"org/repo": Repository(files)}) as hub:
        yield hub


def environment(hub: HubServer, home: Path, **more: str) -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": hub.hub_url,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **more,
    }


def theirs(hub: HubServer, home: Path, request: object, **more: str) -> dict[str, object]:
    """What the real client does, in a process of its own: it reads the environment once."""
    done = subprocess.run(
        [sys.executable, "-c", THEIRS, json.dumps(request)],
        env=environment(hub, home, **more),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def ours(hub: HubServer, home: Path, **more: str) -> ModelDownload:
    settings = HubSettings.from_environment(environment(hub, home, **more))
    return ModelDownload(settings, lambda progress: None)


async def test_the_real_client_finds_what_we_fetched(hub: HubServer, tmp_path: Path) -> None:
    fetched = await ours(hub, tmp_path).fetch(MODEL)
    await ours(hub, tmp_path).fetch(attrs.evolve(MODEL, filename="config.json"))
    hub.served_bytes = 0
    answer = await trio.to_thread.run_sync(
        theirs, hub, tmp_path, {"file": MODEL.filename, "scan": True}
    )
    assert answer["path"] == str(fetched.path)
    assert hub.served_bytes == 0
    assert answer["warnings"] == []
    assert answer["incomplete"] == 0
    assert answer["repos"] == [
        ["org/repo", ["config.json", "m-Q4_K_M.gguf"], ["main", "main"]]
    ] or (answer["repos"] == [["org/repo", ["config.json", "m-Q4_K_M.gguf"], ["main"]]])
    offline = await trio.to_thread.run_sync(
        lambda: theirs(hub, tmp_path, {"file": "config.json"}, HF_HUB_OFFLINE="1")
    )
    assert str(offline["path"]).endswith("/config.json")


async def test_we_find_what_the_real_client_fetched(hub: HubServer, tmp_path: Path) -> None:
    answer = await trio.to_thread.run_sync(theirs, hub, tmp_path, {"file": MODEL.filename})
    assert "error" not in answer
    hub.served_bytes = 0
    fetched = await ours(hub, tmp_path).fetch(MODEL)
    assert str(fetched.path) == answer["path"]
    assert hub.served_bytes == 0
    offline = await ours(hub, tmp_path, HF_HUB_OFFLINE="1").fetch(MODEL)
    assert offline == fetched


async def test_a_cache_that_was_made_by_hand_is_one_to_both(hub: HubServer, tmp_path: Path) -> None:
    repository = tmp_path / "hf" / "hub" / "models--org--repo"
    file = repository / "snapshots" / "from-a-disk" / MODEL.filename
    ref = repository / "refs" / "main"
    elsewhere = tmp_path / "hf" / "hub" / "elsewhere" / MODEL.filename
    for path, data in ((file, DATA), (ref, b"from-a-disk"), (elsewhere, DATA)):
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    offline = ours(hub, tmp_path, HF_HUB_OFFLINE="1")
    fetched = await offline.fetch(MODEL)
    answer = await trio.to_thread.run_sync(
        lambda: theirs(hub, tmp_path, {"file": MODEL.filename}, HF_HUB_OFFLINE="1")
    )
    assert str(fetched.path) == answer["path"] == str(file)
    for outside in ("../../elsewhere", "..", "", "a/b", "a\\b"):
        ref.write_text(outside)
        with pytest.raises(ServerUnreachableError):
            await offline.fetch(MODEL)


def test_the_hub_on_this_machine_is_one_to_the_real_client(hub: HubServer, tmp_path: Path) -> None:
    answer = theirs(hub, tmp_path, {"list": True})
    assert answer["files"] == answer["tree"] == [MODEL.filename, "config.json"]
    assert answer["sha"] == hub.repositories["org/repo"].commit
    assert answer["hashes"] == [sha256(DATA), None]
    for more, error in (
        ({"file": "none.gguf"}, "RemoteEntryNotFoundError"),
        ({"list": True}, "RepositoryNotFoundError"),
    ):
        if error.startswith("Repository"):
            hub.repositories["org/repo"].token = "hf_secret"
        assert theirs(hub, tmp_path, more)["error"] == error
    hub.repositories["org/repo"].is_gated = True
    assert theirs(hub, tmp_path, {"file": MODEL.filename})["error"] == "GatedRepoError"
    allowed = theirs(hub, tmp_path, {"file": "config.json"}, HF_TOKEN="hf_secret")
    assert Path(str(allowed["path"])).read_bytes() == SMALL


async def test_a_listing_comes_from_the_hub_and_offline_from_the_cache(
    hub: HubServer, tmp_path: Path
) -> None:
    listing = await ours(hub, tmp_path).listing("org/repo", "main")
    assert listing.files == (MODEL.filename, "config.json")
    await ours(hub, tmp_path).fetch(MODEL)
    offline = await ours(hub, tmp_path, HF_HUB_OFFLINE="1").listing("org/repo", "main")
    assert offline.files == (MODEL.filename,)
    assert offline.commit == listing.commit


# --- processes ------------------------------------------------------------------------------------

CHILD = """
import os, sys, trio
from paddler_trio.net.client.download_errors import ServerUnreachableError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.download.model_download import ModelDownload
from paddler_trio.models.download.transfer import TransferLimits
from paddler_trio.wire.paddler.desired_state import HuggingFaceModel
model = HuggingFaceModel(sys.argv[1], "org/repo", "main")
limits = TransferLimits(workers=2, part_blocks=4)
async def main():
    settings = HubSettings.from_environment()
    await ModelDownload(settings, lambda p: None, limits).fetch(model)
trio.run(main)
"""


def child(hub: HubServer, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, MODEL.filename],
        env=environment(hub, home),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("seed", range(3))
async def test_a_process_that_is_killed_loses_at_most_one_part(
    hub: HubServer, tmp_path: Path, seed: int
) -> None:
    """Every part waits for leave to begin; the process is killed with some of them given."""
    part = 4 * MIB
    order = random.Random(seed)
    leave = threading.Semaphore(order.randrange(2, 5))
    arrived = threading.Semaphore(0)
    stopped = threading.Event()

    class Gate(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            arrived.release()
            while not stopped.is_set() and not leave.acquire(timeout=0.01):
                pass
            return True

    def gated(seen: Seen) -> Misbehaviour:
        return Misbehaviour(waits_for=Gate())

    hub.misbehave = gated
    process = child(hub, tmp_path)
    try:
        parts = 0
        while parts < 3:
            assert await trio.to_thread.run_sync(lambda: arrived.acquire(timeout=60))
            parts += 1
    finally:
        process.send_signal(signal.SIGKILL)
        await trio.to_thread.run_sync(process.wait)
        assert process.stdout is not None
        process.stdout.close()
        stopped.set()
    hub.misbehave = lambda seen: None
    journals = list((tmp_path / "hf" / "hub").rglob("*.journal"))
    assert len(journals) == 1, "it was killed while it downloaded"
    fetched = await ours(hub, tmp_path).fetch(MODEL)
    assert fetched.path.read_bytes() == DATA
    on_its_way = MIB  # in the buffers of four connections, and never read
    twice = hub.served_bytes - len(DATA)
    assert twice <= part + on_its_way, "one part is fetched twice at most"


async def test_two_processes_share_one_download(hub: HubServer, tmp_path: Path) -> None:
    processes = [child(hub, tmp_path) for _ in range(2)]
    for process in processes:
        await trio.to_thread.run_sync(lambda p=process: p.communicate(timeout=120))
        assert process.returncode == 0
    assert hub.served_bytes == len(DATA)
    fetched = await ours(hub, tmp_path, HF_HUB_OFFLINE="1").fetch(MODEL)
    assert fetched.path.read_bytes() == DATA
