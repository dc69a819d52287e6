"""Ollama's own client makes, copies and deletes models: presets, for who may manage."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import httpx
import pytest
from fleet import END_S, Fleet
from rollouts import apply, deployment

from hub_server import Misbehaviour, Repository, Seen, hub_server
from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)
from paddler_trio.processes.engine.proof import BUNDLED_MODEL

if TYPE_CHECKING:
    import ollama

SAY = [{"role": "user", "content": "What is a slot?"}]
BRIEF = {"options": {"num_predict": 2}}
NOTHING = {"system": "", "template": "", "verbose": False, "options": None}
LOGIN = {"username": "", "password": ""}


@attrs.frozen
class Place:
    """A fleet whose key ``boss`` may manage, and whose key ``guest`` may ask."""

    fleet: Fleet
    keys: dict[str, str]
    audit: Path

    def client(self, name: str) -> ollama.Client:
        import ollama  # slow: not while tests are collected

        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        return ollama.Client(
            self.fleet.inference_url, headers=headers, trust_env=False, timeout=END_S
        )

    def note(self) -> str:
        """Of the revision in force."""
        answer = httpx.get(
            f"{self.fleet.management_url}/api/v2/fleet", trust_env=False, timeout=END_S
        )
        revision = answer.json()["revision"]
        return f"{revision['author']}: {revision['note']}"


@contextmanager
def place_in(folder: Path, env: dict[str, str] | None = None) -> Iterator[Place]:
    """A fleet with one deployment, ``coder``, which has one preset."""
    keys = {"boss": new_secret(), "guest": new_secret()}
    content = KeyFile()
    for name, secret in keys.items():
        scopes = {KeyScope.INFERENCE} | ({KeyScope.MANAGEMENT} if name == "boss" else set())
        key = StoredKey.of(secret, name=name, scopes=frozenset(scopes), created="2026-01-02")
        content = content.having(key)
    write_key_file(folder / "keys.json", content)
    options = [
        "--compat-ollama-addr=127.0.0.1:0",
        *(f"--api-key-file={folder}/keys.json", "--strict-model-names"),
        *("--insecure-management", f"--audit-log={folder}/audit.jsonl"),
    ]
    with Fleet.start(agents=1, model=None, balancer_options=options, env=env) as fleet:
        apply(
            fleet,
            deployment(BUNDLED_MODEL, "coder", aliases=["qwen"], presets=[{"name": "terse"}]),
        )
        fleet.wait_until(lambda view: any(each["is_accepting"] for each in view["agents"]))
        yield Place(fleet, keys, folder / "audit.jsonl")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The fleet of most files here."""
    with place_in(tmp_path_factory.mktemp("keys")) as made:
        yield made


def names(client: ollama.Client) -> list[str]:
    return [str(each.model) for each in client.list().models]


def test_a_model_is_made_asked_copied_and_deleted(place: Place) -> None:
    with place.client("boss") as boss, place.client("guest") as guest:
        made = boss.create(
            "mario:8b",
            from_="coder:latest",
            system="You are Mario.",
            parameters={"temperature": 0.25, "stop": ["END"], "num_predict": 5, "num_ctx": 8},
        )
        assert made.status == "success"
        assert place.note() == "boss: /api/create from coder"
        assert names(guest) == ["coder:latest", "terse:latest", "mario:8b"]
        shown = guest.show("mario:8b")
        assert "temperature                    0.25" in (shown.parameters or "")
        assert 'SYSTEM """You are Mario."""' in (shown.modelfile or "")
        answer = guest.chat("mario:8b", SAY, think=False)
        assert (answer.model, answer.eval_count) == ("mario:8b", 5)
        steps = [
            each.status
            for each in boss.create("mario:8b", from_="mario:8b", system="Be Luigi.", stream=True)
        ]
        assert steps[-1] == "success"
        shown = guest.show("mario:8b")
        assert 'SYSTEM """Be Luigi."""' in (shown.modelfile or "")
        assert "temperature                    0.25" in (shown.parameters or ""), "it stays"
        assert boss.copy("mario:8b", "luigi").status == "success"
        assert guest.chat("luigi:latest", SAY, think=False).eval_count == 5
        assert boss.copy("qwen", "coder-too").status == "success"
        assert guest.chat("coder-too", SAY, options={"num_predict": 3}, think=False).eval_count == 3
        for name in ("luigi", "mario:8b", "coder-too"):
            assert boss.delete(name).status == "success"
        assert names(guest) == ["coder:latest", "terse:latest"]
    actions = [json.loads(line) for line in place.audit.read_text().splitlines()]
    changes = [(each["who"], each["target"]) for each in actions if each["who"] == "boss"]
    assert changes == [("boss", name) for name in _CHANGED]


_CHANGED = (
    *("mario:8b", "mario:8b", "luigi", "coder-too"),
    *("luigi", "mario:8b", "coder-too"),
)


def test_who_may_not_manage_is_told_what_it_takes(place: Place) -> None:
    import ollama

    with place.client("guest") as guest:
        for ask in (
            lambda: guest.create("mario", from_="coder"),
            lambda: guest.copy("coder", "mario"),
            lambda: guest.delete("terse"),
        ):
            with pytest.raises(ollama.ResponseError, match="the key 'guest' has them not") as no:
                ask()
            assert no.value.status_code == 403
        assert guest.pull("terse").status == "success"
        assert names(guest) == ["coder:latest", "terse:latest"]


def test_what_cannot_be_made_is_refused_by_name(place: Place) -> None:
    import ollama

    with place.client("boss") as boss:
        wrong: list[tuple[Any, int, str]] = [
            (lambda: boss.create("coder", from_="terse"), 400, "'coder' is a name of 'coder'"),
            (lambda: boss.create("qwen", from_="coder"), 400, "'qwen' is a name of 'coder'"),
            (lambda: boss.create("a b", from_="coder"), 400, "'a b' cannot name a preset"),
            (lambda: boss.create("mario", from_="gpt-4"), 404, "'gpt-4' is not served"),
            (lambda: boss.create("mario"), 400, "from is required"),
            (
                lambda: boss.create("mario", from_="coder", template="{{ .Prompt }}"),
                400,
                "template is not supported: the template is the deployment's",
            ),
            (lambda: boss.create("m", from_="coder", quantize="q4_0"), 400, "files are the"),
            (
                lambda: boss.create("m", from_="coder", parameters={"temperature": "hot"}),
                400,
                "parameters.temperature",
            ),
            (lambda: boss.delete("coder"), 409, "coder is what terse are made of: delete these"),
            (lambda: boss.delete("mario"), 404, "'mario' is not served"),
            (lambda: boss.copy("mario", "luigi"), 404, "'mario' is not served"),
        ]
        for ask, status, words in wrong:
            with pytest.raises(ollama.ResponseError) as refused:
                ask()
            assert (refused.value.status_code, words in refused.value.error) == (status, True), (
                refused.value.error
            )
        assert names(boss) == ["coder:latest", "terse:latest"]


def test_the_forms_that_open_webui_fills_in_are_taken(place: Place) -> None:
    """Its router sends a model's name in two fields, and reads JSON of whatever answers."""
    with httpx.Client(
        base_url=place.fleet.inference_url,
        headers={"Authorization": f"Bearer {place.keys['boss']}"},
        trust_env=False,
        timeout=END_S,
    ) as http:
        version = http.get("/api/version").json()["version"]
        assert all(part.isdecimal() for part in version.split("."))
        listed = {each["model"]: each for each in http.get("/api/tags").json()["models"]}
        loaded = http.get("/api/ps").json()["models"]
        for each in loaded:
            assert each["model"] in listed
            datetime.fromisoformat(each["expires_at"])
        both = {"name": "terse:latest", "model": "terse:latest"}
        assert http.post("/api/show", json=both).json()["capabilities"]
        pulled = http.post("/api/pull", json={**both, "insecure": True})
        assert [json.loads(line) for line in pulled.text.splitlines()][-1] == {"status": "success"}
        unloaded = {"model": "terse:latest", "keep_alive": 0, "prompt": ""}
        assert http.post("/api/generate", json=unloaded).json()["done_reason"] == "unload"
        made = http.post("/api/create", json={"model": "webui", "from": "terse", "stream": True})
        assert made.text.splitlines()[-1] == '{"status":"success"}'
        assert http.post(
            "/api/copy", json={"source": "webui:latest", "destination": "webui-2"}
        ).is_success
        said = http.post(
            "/api/chat",
            json={
                "model": "webui-2:latest",
                "messages": [{"role": "user", "content": "Hi"}],
                "options": {"num_predict": 3, "num_ctx": 2048},
                "stream": True,
                "keep_alive": "5m",
            },
        )
        assert said.headers["content-type"] == "application/x-ndjson"
        assert json.loads(said.text.splitlines()[-1])["eval_count"] == 3
        for name in ("webui", "webui-2"):
            body = {"name": name, "model": name}
            assert http.request("DELETE", "/api/delete", json=body).is_success
        missing = http.request("DELETE", "/api/delete", json={"name": "no", "model": "no"})
        assert (missing.status_code, list(missing.json())) == (404, ["error"])


PROGRAM: list[tuple[str, str, dict[str, Any] | None, int, str]] = [
    ("HEAD", "/", None, 200, ""),
    ("POST", "/api/show", {**NOTHING, "model": "", "name": "coder"}, 200, "completion"),
    ("POST", "/api/show", {**NOTHING, "model": "coder", "name": ""}, 200, "completion"),
    ("POST", "/api/show", {**NOTHING, "model": "", "name": "no"}, 404, "'no' is not served"),
    ("POST", "/api/show", {**NOTHING, "model": "", "name": ""}, 400, "model is required"),
    (
        "POST",
        "/api/generate",
        {"model": "coder", "prompt": "", "suffix": ""},
        200,
        "load",
    ),
    (
        "POST",
        "/api/generate",
        {"model": "coder", "prompt": "Hi", "suffix": "", "system": "", "template": "", **BRIEF},
        200,
        '"context":[',
    ),
    ("POST", "/api/chat", {"model": "coder", "messages": SAY, **BRIEF}, 200, '"eval_count":2'),
    ("POST", "/api/pull", {**LOGIN, "model": "", "name": "coder"}, 200, "success"),
    ("POST", "/api/pull", {**LOGIN, "model": "", "name": "llama3.2"}, 501, "hf.co/ORG/REPO"),
    ("POST", "/api/create", {"model": "", "from": "coder", "name": ""}, 400, "model is missing"),
    (
        "POST",
        "/api/create",
        {"model": "ada", "from": "coder", "parameters": {"stop": ["END"]}, "name": ""},
        200,
        "success",
    ),
    (
        "POST",
        "/api/create",
        {"model": "x", "messages": SAY, "name": ""},
        400,
        "messages is not sup",
    ),
    ("POST", f"/api/blobs/sha256:{'0' * 64}", {}, 501, "paddler-trio fleet apply"),
    ("POST", "/api/me", None, 501, "no accounts of ollama.com"),
    ("POST", "/api/push", {"model": "ada", "name": ""}, 501, "models are the operator's"),
    ("POST", "/api/generate", {"model": "ada", "prompt": "", "keep_alive": "0s"}, 200, "unload"),
    ("DELETE", "/api/delete", {"model": "", "name": "ada"}, 200, ""),
]


def test_the_requests_of_ollamas_own_program_are_read(place: Place) -> None:
    """As version 0.17.4 writes them for its commands: a name is in two fields, and empty in one of
    them; what was not said is a zero or null."""
    (address,) = place.fleet.balancer.wait_for_log("balancer up")["compat_ollama"]  # type: ignore[misc]
    with httpx.Client(
        base_url=f"http://{address}",
        headers={"Authorization": f"Bearer {place.keys['boss']}"},
        trust_env=False,
        timeout=END_S,
    ) as http:
        for method, path, body, status, says in PROGRAM:
            answer = http.request(method, path, json=body)
            assert (answer.status_code, says in answer.text) == (status, True), answer.text
            ignored = answer.headers.get("x-paddler-ignored-fields", "keep_alive")
            assert ignored == "keep_alive", "it is none of what was not said"


def test_a_model_of_the_hub_is_pulled_with_its_progress_and_asked(tmp_path: Path) -> None:
    import ollama

    data, gate = BUNDLED_MODEL.read_bytes(), threading.Event()
    with hub_server({"Org/Demo-GGUF": Repository({"demo-Q4_K_M.gguf": data})}) as hub:

        def misbehave(seen: Seen) -> Misbehaviour:
            """The file itself waits; what a judgement reads of its beginning does not."""
            is_whole = seen.range is None or seen.range[1] >= len(data) - 1
            return Misbehaviour(waits_for=gate if is_whole else None)

        hub.misbehave = misbehave
        env = {"HF_ENDPOINT": hub.hub_url, "HF_HOME": str(tmp_path / "hub")}
        name = "hf.co/Org/Demo-GGUF:Q4_K_M"
        try:
            with place_in(tmp_path, env) as place, place.client("boss") as boss:
                with (
                    place.client("guest") as guest,
                    pytest.raises(ollama.ResponseError, match="with the scopes inference and"),
                ):
                    guest.pull(name)
                for wrong, status, words in [
                    ("hf.co/Org/None", 404, "Org/None"),
                    ("hf.co/Org/Demo-GGUF:Q9", 404, "has no Q9; it has Q4_K_M"),
                    ("hf.co/Org", 400, "is not hf:org/repo"),
                    ("llama3.2", 501, "a model is fetched by its repository"),
                ]:
                    with pytest.raises(ollama.ResponseError, match=words) as refused:
                        boss.pull(wrong)
                    assert refused.value.status_code == status
                told: list[ollama.ProgressResponse] = []
                for each in boss.pull(name, stream=True):
                    told.append(each)
                    if each.total is not None:
                        gate.set()  # not before it was told how far it is
                assert [told[0].status, told[-1].status] == ["pulling manifest", "success"]
                files = [each for each in told if each.total is not None]
                assert {(each.status, each.total) for each in files} == {
                    ("pulling demo-Q4_K_M.gguf", len(data))
                }
                assert all(each.completed is not None and each.digest for each in files)
                assert name in names(boss)
                answer = boss.chat(name, SAY, options={"num_predict": 3}, think=False)
                assert (answer.model, answer.eval_count) == (name, 3)
                assert boss.pull(name).status == "success", "it is there"
                assert boss.chat("coder", SAY, options={"num_predict": 3}).eval_count == 3
                assert boss.delete(name).status == "success"
                assert names(boss) == ["coder:latest", "terse:latest"], "nothing is left of it"
                assert boss.delete("terse").status == "success"
                assert names(boss) == ["coder:latest"], "what was not pulled stays"
                assert boss.delete("coder:latest").status == "success"
                assert names(boss) == []
                assert place.note() == "boss: /api/delete of coder"
        finally:
            gate.set()
