"""Commands about what agents keep: through a real balancer and real agents, in this process."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from native_client import Answer, Json, RunningBalancer, open_answer, running_balancer
from paddler_agent import serving_agent

from hub_server import HubServer, Misbehaviour, Repository, hub_server, sha256
from paddler_trio.agent.assembly.agent_daemon import agent_parts
from paddler_trio.cli.balancer_http import BalancerRefusedError
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.model.store_client import StoreClient
from paddler_trio.nursery_tree.agent_tree import run_agent
from paddler_trio.nursery_tree.instance_tree import InstanceParts
from paddler_trio.system.config import split_address
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.system.systemd_notify import SystemdNotifier

MIB = 1 << 20
PULL = "/api/v2/models/pull"
DATA = random.Random(7).randbytes(3 * MIB + 11)
SOURCE = {"HuggingFace": {"filename": "m.gguf", "repo_id": "org/repo", "revision": "main"}}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server({"org/repo": Repository({"m.gguf": DATA})}) as hub:
        yield hub


@pytest.fixture
def cache(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of all agents that are started now."""
    monkeypatch.setenv("HF_ENDPOINT", hub.hub_url)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("PADDLER_CACHE_DIR", str(tmp_path / "ours"))
    return tmp_path / "hub"


def blobs(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("models--*/blobs/*"))


@attrs.frozen
class Agent:
    parts: InstanceParts
    stop: trio.Event

    async def has_no_command(self) -> None:
        """Return when it works on none."""
        run = self.parts.services["model cache"]
        assert isinstance(run, partial)
        with trio.fail_after(30):
            while run.func.__self__._running:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await trio.sleep(0.01)  # nothing else shows it

    async def has_failed(self) -> None:
        """Return when it cannot serve what is desired."""
        run = self.parts.services["model"]
        status = run.__self__.status  # type: ignore[attr-defined]
        with trio.fail_after(30):
            ordinal = 0
            while status.phase != "failed":
                ordinal = await status.changes.wait_beyond(ordinal)


@asynccontextmanager
async def agent_of(balancer: RunningBalancer, name: str) -> AsyncIterator[Agent]:
    """An agent without a model; no process is started for it."""
    host, port = split_address(balancer.management)
    parts = agent_parts(AgentConfig(management_host=host, management_port=port, slots=1, name=name))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        run = partial(run_agent, lambda: parts, stop, notifier=SystemdNotifier())
        with trio.fail_after(30):
            await nursery.start(run)
        yield Agent(parts.first, stop)
        stop.set()


async def next_entry(answer: Answer) -> Json:
    """The next line that is not there only to keep the connection alive."""
    while not (text := await answer.next_text_line()):
        pass
    return json.loads(text)


async def lines(balancer: RunningBalancer, command: str, **fields: Json) -> list[Json]:
    """All lines of a command's answer that has ended."""
    url = balancer.management_url("/api/v2/models")
    if command == "list":
        answer = await balancer.http.get(url, params=fields)
    else:
        answer = await balancer.http.post(f"{url}/{command}", json=fields)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


async def last_lines(balancer: RunningBalancer, command: str, **fields: Json) -> dict[str, Json]:
    """The last word of each agent, by name."""
    return {
        line["name"]: line
        for line in await lines(balancer, command, **fields)
        if "progress" not in line
    }


async def refused(balancer: RunningBalancer, command: str, body: Json) -> tuple[int, str]:
    url = balancer.management_url(f"/api/v2/models/{command}")
    answer = await balancer.http.post(url, json=body)
    return answer.status_code, answer.text


async def test_agents_of_one_host_fetch_a_model_once_and_list_one_cache(
    hub: HubServer, cache: Path
) -> None:
    async with (
        running_balancer() as balancer,
        agent_of(balancer, "a1"),
        agent_of(balancer, "a2"),
        serving_agent(balancer.management, "theirs"),
    ):
        seen = await lines(balancer, "pull", models=[SOURCE])
        last = {line["name"]: line for line in seen if "progress" not in line}
        path = cache / "models--org--repo" / "snapshots" / hub.repositories["org/repo"].commit
        for name in ("a1", "a2"):
            (file,) = last[name]["answer"]["files"]
            assert file == {
                "source": "hf:org/repo/m.gguf@main",
                "path": str(path / "m.gguf"),
                "size_bytes": len(DATA),
                "commit": hub.repositories["org/repo"].commit,
            }
        assert hub.served_bytes == len(DATA)
        assert last["theirs"]["code"] == 501
        progress = [line["progress"] for line in seen if "progress" in line]
        assert {"starting"} < {p["phase"] for p in progress}
        assert "m.gguf" in {p["filename"] for p in progress}

        listed = await last_lines(balancer, "list")
        assert listed["a1"]["answer"] == listed["a2"]["answer"]
        assert listed["theirs"]["code"] == 501
        (model,) = listed["a1"]["answer"]["models"]
        commit = hub.repositories["org/repo"].commit
        assert model["source"] == f"hf:org/repo/m.gguf@{commit}"
        assert (model["state"], model["size_bytes"]) == ("whole", len(DATA))
        assert model["revisions"] == ["main"]
        assert model["last_used_s"] > 0
        assert model["verified_s"] > 0
        assert not model["in_use"]
        assert list(await last_lines(balancer, "list", agent="a2")) == ["a2"]


async def test_an_altered_file_is_quarantined_and_fetched_anew(hub: HubServer, cache: Path) -> None:
    async with running_balancer() as balancer, agent_of(balancer, "a1"):
        await lines(balancer, "pull", models=[SOURCE])
        blob = cache / "models--org--repo" / "blobs" / sha256(DATA)
        good = (await last_lines(balancer, "verify"))["a1"]["answer"]["files"]
        assert [file["result"] for file in good] == ["matches"]
        with blob.open("r+b") as file:
            file.write(b"altered")
        others = (await last_lines(balancer, "verify", sources=["hf:org/other"]))["a1"]
        assert others["answer"] == {"files": []}
        (bad,) = (await last_lines(balancer, "verify", sources=["hf:org/repo"]))["a1"]["answer"][
            "files"
        ]
        assert bad["result"] == "quarantined"
        assert "fetched anew" in bad["problem"]
        listed = (await last_lines(balancer, "list"))["a1"]["answer"]["models"]
        assert [model["state"] for model in listed] == ["quarantined"]
        await lines(balancer, "pull", models=[SOURCE])
        assert sha256(blob.read_bytes()) == sha256(DATA)
        gone = (await last_lines(balancer, "prune", used_within_s=0, newest=1))["a1"]["answer"]
        assert [entry["source"].partition(":")[0] for entry in gone["removed"]] == ["hf"]
        assert gone["kept"] == 1
        assert [
            m["state"] for m in (await last_lines(balancer, "list"))["a1"]["answer"]["models"]
        ] == ["whole"]


async def test_what_is_desired_stays_and_a_dry_run_removes_nothing(
    hub: HubServer, cache: Path
) -> None:
    hub.repositories["org/other"] = Repository({"o.gguf": b"other"})
    other = {"HuggingFace": {"filename": "o.gguf", "repo_id": "org/other", "revision": "main"}}
    async with running_balancer() as balancer, agent_of(balancer, "a1") as agent:
        await lines(balancer, "pull", models=[SOURCE, other])
        desired = (await balancer.desired_state()) | {"model": SOURCE}
        hub.hub_misbehave = lambda seen: Misbehaviour(status=500)
        (cache / "models--org--repo" / "refs" / "main").unlink()  # it cannot be resolved now
        assert (await balancer.put_state(desired)).status_code == 204
        await agent.has_failed()
        (cache / "models--org--repo" / "refs" / "main").write_text(
            hub.repositories["org/repo"].commit
        )
        for dry_run in (True, False):
            answer = (await last_lines(balancer, "prune", newest=0, dry_run=dry_run))["a1"][
                "answer"
            ]
            assert [gone["source"].partition("@")[0] for gone in answer["removed"]] == [
                "hf:org/other/o.gguf"
            ]
            assert answer["freed_bytes"] == len(b"other")
            left = blobs(cache)
            assert left == sorted([sha256(DATA), *([sha256(b"other")] if dry_run else [])])


async def test_a_client_that_leaves_ends_its_command_and_the_next_one_goes_on(
    hub: HubServer, cache: Path
) -> None:
    hub.misbehave = lambda seen: Misbehaviour(falls_silent_after=2 * MIB + 5)
    async with running_balancer() as balancer, agent_of(balancer, "a1") as agent:
        body = {"models": [SOURCE], "agents": ["a1"]}
        async with open_answer(balancer.management, "POST", PULL, body) as answer:
            here = 0
            while here < 2 * MIB:
                progress = (await next_entry(answer))["progress"]
                here = progress["current_bytes"]
            assert progress["total_bytes"] == len(DATA)
        await agent.has_no_command()
        hub.misbehave = lambda seen: None
        hub.seen.clear()
        (line,) = (await last_lines(balancer, "pull", models=[SOURCE])).values()
        assert line["answer"]["files"][0]["size_bytes"] == len(DATA)
        ranges = [seen.range for seen in hub.seen_by_storage() if seen.range]
        assert [start for start, _ in ranges] == [2 * MIB], "what was here stayed"


async def test_an_agent_that_leaves_ends_its_commands_with_an_answer(
    hub: HubServer, cache: Path
) -> None:
    hub.misbehave = lambda seen: Misbehaviour(falls_silent_after=10)
    async with running_balancer() as balancer, agent_of(balancer, "a1") as agent:
        body = {"models": [SOURCE]}
        async with open_answer(balancer.management, "POST", PULL, body) as answer:
            while not (await next_entry(answer)).get("progress", {}).get("filename"):
                pass
            agent.stop.set()
            while "progress" in (line := await next_entry(answer)):
                pass
            assert (line["problem"], line["code"]) == ("this agent is leaving", 503)


async def test_what_is_left_of_a_model_that_never_became_whole_can_be_removed(
    hub: HubServer, cache: Path
) -> None:
    parts = {"m-00001-of-00002.gguf": b"one", "m-00002-of-00002.gguf": b"two"}
    hub.repositories["org/parts"] = Repository(parts)
    model = {"filename": "m-00001-of-00002.gguf", "repo_id": "org/parts", "revision": "main"}
    hub.misbehave = lambda seen: Misbehaviour(status=404) if sha256(b"two") in seen.path else None
    async with running_balancer() as balancer, agent_of(balancer, "a1"):
        failed = (await last_lines(balancer, "pull", models=[{"HuggingFace": model}]))["a1"]
        assert failed["code"] == 404
        models = (await last_lines(balancer, "list"))["a1"]["answer"]["models"]
        left, partial = sorted(models, key=lambda model: str(model["state"]))
        assert (left["state"], left["missing_files"]) == ("incomplete", 1)
        assert (partial["state"], partial["size_bytes"]) == ("partial", 0)
        gone = (await last_lines(balancer, "prune", newest=0))["a1"]["answer"]
        assert [entry["source"] for entry in gone["removed"]] == [left["source"]]
        assert blobs(cache) == []


async def test_a_failure_has_its_cause_and_a_code(hub: HubServer, cache: Path) -> None:
    missing = {"HuggingFace": {"filename": "x.gguf", "repo_id": "org/repo", "revision": "main"}}
    async with running_balancer() as balancer, agent_of(balancer, "a1"):
        line = (await last_lines(balancer, "pull", models=[missing]))["a1"]
        assert line["code"] == 404
        assert "x.gguf" in line["problem"] or "no such" in line["problem"]
        line = (await last_lines(balancer, "verify", sources=["ftp://x"]))["a1"]
        assert line["code"] == 400


async def test_what_cannot_be_commanded_is_refused_with_the_field(cache: Path) -> None:
    async with running_balancer() as balancer:
        assert await lines(balancer, "list") == [], "nobody is there"
        for command, body, words in (
            ("pull", {"models": []}, "0 models, must be 1 to 8 @ $.models"),
            ("pull", {"models": [{"LocalToAgent": "/m"}]}, "LocalToAgent is not fetched"),
            ("pull", {"models": ["None"]}, "@ $.models[0]"),
            ("pull", {}, "required field missing @ $.models"),
            ("pull", {"models": [SOURCE], "agents": "a1"}, "@ $.agents"),
            ("prune", {}, "says what to keep"),
            ("prune", {"newest": -1}, "@ $.newest"),
            ("verify", {"sources": ["x"] * 65}, "65 sources, the limit is 64 @ $.sources"),
            ("verify", {"sources": ["x\0"]}, "no NUL @ $.sources[0]"),
            ("verify", [], "expected an object"),
        ):
            status, text = await refused(balancer, command, body)
            assert (status, words in text) == (400, True), text
        assert await refused(balancer, "verify", {"agents": ["nobody"]}) == (
            404,
            "no agent 'nobody' is connected",
        )


async def test_a_balancer_without_a_store_answers_an_upload_with_what_to_do() -> None:
    async with running_balancer() as balancer:
        for method, path in (("GET", ""), ("PUT", f"/blobs/sha256/{sha256(DATA)}")):
            url = balancer.management_url(f"/api/v2/store{path}")
            answer = await balancer.http.request(method, url, content=DATA[:1000])
            assert answer.status_code == 501
            assert "start it with --model-store DIR --model-store-size" in answer.text

        def push() -> None:
            with StoreClient.open(ManagementFlags(balancer.management)) as client:
                client.here_bytes(sha256(DATA))

        with pytest.raises(BalancerRefusedError, match="start it with --model-store"):
            await trio.to_thread.run_sync(push)
