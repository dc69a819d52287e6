"""The model store of a real balancer: a child process that gets connections passed to it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import attrs
import forked_processes
import httpx
import pytest
from fleet import Daemon, children

from cli_in_process import invoke

DATA = bytes(range(256)) * 20_000
SHA256 = hashlib.sha256(DATA).hexdigest()


@attrs.frozen
class Stored:
    """A balancer with a store, and a key for it; ``address`` is of its management port."""

    balancer: Daemon
    address: str
    folder: Path
    key: str

    @property
    def url(self) -> str:
        return f"http://{self.address}/api/v2/store"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def get(self, path: str = "", method: str = "GET", **headers: str) -> httpx.Response:
        sent = {**self.headers, **headers}
        return httpx.request(method, f"{self.url}{path}", headers=sent, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    root = tmp_path_factory.mktemp("store")
    keys = root / "keys.json"
    made = forked_processes.run("key", "new", "ops", "--scope=management", f"--file={keys}")
    made.check_returncode()
    blobs = root / "models" / "pushed" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / SHA256).write_bytes(DATA)
    options = ["--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0", "--log-json"]
    options += [f"--model-store={root / 'models'}", "--model-store-size=1GB"]
    balancer = Daemon.start("balancer", ["balancer", *options, f"--api-key-file={keys}"], {})
    try:
        (address,) = cast("list[str]", balancer.wait_for_log("balancer up")["management"])
        balancer.wait_for_log("model store up")
        stored = Stored(balancer, address, root / "models", made.stdout.split()[-1])
        yield stored
    finally:
        balancer.end()


def test_the_store_asks_for_a_management_key(stored: Stored) -> None:
    for path in ("", f"/blobs/sha256/{SHA256}"):
        assert httpx.get(f"{stored.url}{path}", trust_env=False, timeout=60).status_code == 401
    refused = httpx.put(
        f"{stored.url}/blobs/sha256/{SHA256}", content=b"x" * 10**6, trust_env=False, timeout=60
    )
    assert refused.status_code == 401, "a body that is not read does not hang the refusal"


def test_the_store_gets_what_nobody_else_wants_of_the_processor(stored: Stored) -> None:
    (store,) = children(stored.balancer.pid)
    assert os.sched_getscheduler(store) == os.SCHED_IDLE, "behind the balancer and its session"
    assert os.getsid(store) == store, "else the balancer's session is as heavy as an agent's"
    autogroup = Path(f"/proc/{store}/autogroup")
    if autogroup.exists():  # the kernel schedules sessions as groups
        assert autogroup.read_text().split()[-2:] == ["nice", "5"]


def test_files_are_listed_and_served_whole_and_by_range(stored: Stored) -> None:
    listed = stored.get().json()
    assert listed["size_bytes"] == 10**9
    assert listed["used_bytes"] == len(DATA)
    (file,) = listed["files"]
    assert file["key"] == f"pushed/blobs/{SHA256}"
    assert file["sha256"] == SHA256
    whole = stored.get(f"/blobs/sha256/{SHA256}")
    assert whole.content == DATA
    assert whole.headers["etag"] == f'"{SHA256}"'
    part = stored.get(f"/blobs/sha256/{SHA256}", Range="bytes=1000-1009")
    assert part.status_code == 206
    assert part.content == DATA[1000:1010]
    assert part.headers["content-range"] == f"bytes 1000-1009/{len(DATA)}"
    head = stored.get(f"/blobs/sha256/{SHA256}", "HEAD")
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(DATA)))
    assert stored.get(f"/blobs/sha256/{SHA256}", Range=f"bytes={len(DATA)}-").status_code == 416


def test_what_is_not_there_and_what_cannot_be_are_refused_in_words(stored: Stored) -> None:
    assert stored.get(f"/blobs/sha256/{'0' * 64}").status_code == 404
    bad = stored.get("/blobs/sha256/../../keys.json")
    assert bad.status_code in {400, 404}
    bad = stored.get("/blobs/sha256/UPPER")
    assert bad.status_code == 400
    assert "64 hex digits" in bad.text
    assert stored.get("/nothing/here").status_code == 404


def test_a_store_that_is_killed_comes_back_and_its_connections_are_counted_anew(
    stored: Stored,
) -> None:
    host, _, port = stored.address.rpartition(":")
    with socket.create_connection((host, int(port))) as reader:
        path = f"/api/v2/store/blobs/sha256/{SHA256}"
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {stored.key}"]
        reader.sendall("\r\n".join([*lines, "", ""]).encode())
        assert reader.recv(10).startswith(b"HTTP/1.1 2")
        balancer = stored.balancer
        pid = balancer.engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        crash = balancer.wait_for_log("child crashed")
        assert crash["child"] == "model store"
        received = b""
        while data := reader.recv(1 << 20):
            received += data
        assert len(received) < len(DATA) + 1000 or received.endswith(DATA[-100:])
    balancer.log.clear()
    tree = httpx.get(
        f"http://{stored.address}/api/v2/tree", headers=stored.headers, trust_env=False, timeout=60
    )
    (owner,) = [n for n in tree.json()["children"] if n["name"] == "state owner"]
    (node,) = [n for n in owner["children"] if n["name"] == "model store"]
    assert node["restarts"] == 1
    while (answer := stored.get()).status_code == 503:
        assert answer.headers["retry-after"] == "1"
    assert answer.status_code == 200
    assert json.dumps(answer.json()).count(SHA256) == 2


def test_what_is_pinned_survives_a_prune_and_each_leaves_a_record(
    stored: Stored, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(stored.key)
    where = (f"--management-addr={stored.address}", f"--key-file={key_file}")
    name = f"pushed/blobs/{SHA256}"
    pinned = invoke("model", "pin", name, *where)
    assert (pinned.exit_code, pinned.stdout) == (0, f"{name} (5.1 MB) is pinned\n")
    assert "pinned" in invoke("model", "list", *where).stdout
    kept = invoke("model", "prune", "--store", "--keep=0", "--json", *where)
    assert (kept.exit_code, json.loads(kept.stdout)["removed"]) == (0, [])
    assert invoke("model", "unpin", name, *where).exit_code == 0
    unkeyed = invoke("model", "prune", "--store", "--keep=0", where[0])
    assert (unkeyed.exit_code, "--key-file" in unkeyed.stderr) == (1, True)
    gone = invoke("model", "prune", "--store", "--keep=0", *where)
    assert gone.stdout == f"store: {name} (5.1 MB)\n5.1 MB freed\n"
    nothing = invoke("model", "pin", name, *where)
    assert (nothing.exit_code, "model list" in nothing.stderr) == (1, True)
    url = f"http://{stored.address}/api/v2/audit"
    entries = httpx.get(url, headers=stored.headers, trust_env=False, timeout=60).json()["entries"]
    told = [(each["who"], each["action"], each["target"], each["outcome"]) for each in entries]
    assert told[-4:] == [
        ("ops", "store model pinned", name, "done"),
        ("ops", "store pruned", "nothing", "done"),
        ("ops", "store model unpinned", name, "done"),
        ("ops", "store pruned", name, "done"),
    ]


def test_a_store_without_a_size_or_with_a_folder_that_is_none_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"")
    ports = ["--inference-addr=127.0.0.1:0", "--management-addr=127.0.0.1:0"]
    for options, reason in (
        ([str(tmp_path / "file" / "in"), "--model-store-size=1GB"], "Not a directory"),
        ([str(tmp_path / "store")], "--model-store-size"),
        ([str(tmp_path / "store"), "--model-store-size=much"], "no size"),
    ):
        ended = forked_processes.run("balancer", *ports, "--model-store", *options)
        assert ended.returncode != 0
        assert reason in ended.stderr
