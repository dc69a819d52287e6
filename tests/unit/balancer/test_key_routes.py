"""Keys that are made and revoked through the API: in the file, in force, and never locked out."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest
import structlog

from exchanges import exchange_for
from paddler_trio.balancer.keys import key_routes
from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    read_key_file,
    write_key_file,
)
from paddler_trio.balancer.keys.key_ring import KeyRing
from paddler_trio.balancer.keys.key_routes import KeyRoutes
from paddler_trio.net.server.asgi import Message
from paddler_trio.net.server.exchange import Identity
from paddler_trio.net.server.router import Router

INFERENCE, MANAGEMENT = KeyScope.INFERENCE, KeyScope.MANAGEMENT


def ring_of(folder: Path, **names: KeyScope) -> KeyRing:
    content = KeyFile()
    for name, scope in names.items():
        scopes = frozenset({scope})
        content = content.having(
            StoredKey.of(new_secret(), name=name, scopes=scopes, created="2026-01-01")
        )
    path = folder / "keys.json"
    write_key_file(path, content)
    return KeyRing.read(path)


async def ask(
    ring: KeyRing, method: str, path: str = "/api/v2/keys", body: object = None, by: str = "ops"
) -> tuple[int, str]:
    router = Router()
    KeyRoutes(ring).add_to(router)
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    scope = {
        "method": method,
        "path": path,
        "headers": [(b"content-type", b"application/json")],
    }
    await router(exchange_for(scope, receive, send, identity=Identity(by)))
    return said[0]["status"], b"".join(each.get("body", b"") for each in said[1:]).decode()


async def test_a_key_that_is_made_is_in_force_at_once_and_shown_once(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT)
    order = {"name": "shop", "scopes": ["inference"], "deployments": ["coder"]}
    with structlog.testing.capture_logs() as records:
        status, text = await ask(ring, "POST", body=order)
    made = json.loads(text)
    assert (status, made["name"]) == (201, "shop")
    assert made["key"] not in str(records)
    found = ring.find(made["key"].encode())
    assert found is not None
    assert (found.name, found.scopes, found.deployments) == ("shop", {INFERENCE}, {"coder"})
    assert ring.path is not None
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
    assert made["key"] not in ring.path.read_text()
    ring.requests["shop"] = 3
    status, text = await ask(ring, "GET")
    listed = json.loads(text)
    assert listed["file"] is True
    assert [key["name"] for key in listed["keys"]] == ["ops", "shop"]
    assert listed["keys"][1] == {
        "name": "shop",
        "scopes": ["inference"],
        "deployments": ["coder"],
        "created": found.created,
        "requests": 3,
        "expires": None,
        "expired": False,
        "requests_per_minute": None,
        "max_concurrent": None,
        "tokens_per_day": None,
        "tokens_per_month": None,
        "used": {
            "requests_last_minute": 0,
            "concurrent": 0,
            "tokens_today": 0,
            "tokens_this_month": 0,
        },
    }
    assert made["key"] not in text
    assert (await ask(ring, "DELETE", "/api/v2/keys/shop"))[0] == 204
    assert ring.find(made["key"].encode()) is None


async def test_the_last_management_key_stays(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT, app=INFERENCE)
    status, text = await ask(ring, "DELETE", "/api/v2/keys/ops")
    assert status == 409
    assert "make another one first" in text
    assert (await ask(ring, "POST", body={"name": "night", "scopes": ["management"]}))[0] == 201
    assert (await ask(ring, "DELETE", "/api/v2/keys/ops"))[0] == 204
    assert [key.name for key in ring.keys] == ["app", "night"]
    assert (await ask(ring, "DELETE", "/api/v2/keys/ops", by="night"))[0] == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "$"),
        ({}, "$"),
        ({"name": "a", "more": 1}, "$"),
        ({"name": 5}, "$.name"),
        ({"name": "a b"}, "$.name"),
        ({"name": "x" * 65}, "$.name"),
        ({"name": "a", "scopes": []}, "$.scopes"),
        ({"name": "a", "scopes": "inference"}, "$.scopes"),
        ({"name": "a", "scopes": ["all"]}, "$.scopes"),
        ({"name": "a", "scopes": [{}]}, "$.scopes"),
        ({"name": "a", "scopes": ["inference", "inference"]}, "$.scopes"),
        ({"name": "a", "deployments": "coder"}, "$.deployments"),
        ({"name": "a", "deployments": ["A B"]}, "$.deployments"),
        ({"name": "a", "deployments": ["a"] * 65}, "$.deployments"),
        ({"name": "a", "scopes": ["management"], "deployments": ["a"]}, "$.deployments"),
    ],
)
async def test_what_is_wrong_with_a_key_is_named(tmp_path: Path, body: object, field: str) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT)
    status, text = await ask(ring, "POST", body=body)
    assert status == 400
    assert text.endswith(f"@ {field}")
    assert [key.name for key in ring.keys] == ["ops"]


async def test_a_name_is_taken_once(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT)
    status, text = await ask(ring, "POST", body={"name": "ops"})
    assert status == 409
    assert "already" in text


async def test_without_a_file_it_is_said_how_to_have_one() -> None:
    ring = KeyRing()
    assert json.loads((await ask(ring, "GET"))[1]) == {"file": False, "keys": []}
    for method, path in (("POST", "/api/v2/keys"), ("DELETE", "/api/v2/keys/a")):
        status, text = await ask(ring, method, path, body={"name": "a"})
        assert status == 409
        assert "--api-key-file keys.json" in text


async def test_the_first_management_key_would_lock_the_agents_out(tmp_path: Path) -> None:
    ring = ring_of(tmp_path, app=INFERENCE)
    status, text = await ask(ring, "POST", body={"name": "ops", "scopes": ["management"]}, by="")
    assert status == 409
    assert "--token-file" in text
    assert (await ask(ring, "POST", body={"name": "b"}, by=""))[0] == 201


@pytest.mark.parametrize("by", ["", "app", "panel:ops", "gone"])
async def test_only_managers_change_keys_also_on_a_port_that_asks_for_none(
    tmp_path: Path, by: str
) -> None:
    ring = ring_of(tmp_path, ops=MANAGEMENT, app=INFERENCE)
    assert (await ask(ring, "POST", body={"name": "evil"}, by=by))[0] == 403
    assert (await ask(ring, "DELETE", "/api/v2/keys/app", by=by))[0] == 403


async def test_a_file_that_others_hold_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_routes, "LOCK_PATIENCE_S", 0.05)
    ring = ring_of(tmp_path, ops=MANAGEMENT)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, text = await ask(ring, "POST", body={"name": "a"})
    finally:
        os.close(held)
    assert status == 500
    assert "not changed" in text
    assert ring.path is not None
    assert [key.name for key in read_key_file(ring.path).keys] == ["ops"]
    assert (await ask(ring, "POST", body={"name": "a"}))[0] == 201
