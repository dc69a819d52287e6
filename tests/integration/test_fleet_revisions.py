"""Revisions of the fleet with a real balancer: whose they are, and that no kill loses one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from fleet import Daemon

from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)

STATE = {
    "deployments": [
        {"name": "coder", "model": {"LocalToAgent": "/c.gguf"}, "replicas": "0..2"},
        {"name": "default", "model": {"LocalToAgent": "/m.gguf"}},
    ]
}


def balancer(folder: Path) -> Daemon:
    return Daemon.start(
        "balancer",
        [
            "balancer",
            "--inference-addr=127.0.0.1:0",
            "--management-addr=127.0.0.1:0",
            f"--state-database=file://{folder}/state.json",
            f"--api-key-file={folder}/keys.json",
            "--log-json",
        ],
        {},
    )


def ask(daemon: Daemon, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
    address = daemon.wait_for_log("balancer up")["management"]
    assert isinstance(address, list)
    return httpx.request(
        method,
        f"http://{address[0]}/api/{path}",
        headers={"Authorization": f"Bearer {key}"},
        json=body,
        trust_env=False,
        timeout=60,
    )


def test_a_revision_has_the_name_of_its_key_and_outlives_a_kill(tmp_path: Path) -> None:
    keys = {name: new_secret() for name in ("ann", "bob")}
    scopes = frozenset({KeyScope.MANAGEMENT})
    known = KeyFile()
    for name, secret in keys.items():
        known = known.having(StoredKey.of(secret, name=name, scopes=scopes, created="2026-01-02"))
    write_key_file(tmp_path / "keys.json", known)
    first = balancer(tmp_path)
    try:
        stored = ask(first, keys["ann"], "PUT", "v2/fleet", {"state": STATE, "note": "two of them"})
        assert stored.status_code == 200, stored.text
        state = ask(first, keys["bob"], "GET", "v1/balancer_desired_state").json()
        state["inference_parameters"]["temperature"] = 0.25
        ask(first, keys["bob"], "PUT", "v1/balancer_desired_state", state).raise_for_status()
        history = ask(first, keys["ann"], "GET", "v2/fleet/history").json()["revisions"]
        assert [each["author"] for each in history] == ["bob", "ann", ""]
    finally:
        first.end()  # a kill
    previous = json.loads((tmp_path / "state.json.fleet.json.previous").read_text())
    assert previous["history"][0]["author"] == "ann"
    second = balancer(tmp_path)
    try:
        found = ask(second, keys["ann"], "GET", "v2/fleet/history").json()["revisions"]
        assert found == history
        assert ask(second, keys["ann"], "GET", "v1/balancer_desired_state").json() == state
        undone = ask(second, keys["bob"], "POST", "v2/fleet/undo").json()
        assert (undone["revision"], undone["author"]) == (3, "bob")
        assert undone["state"] == stored.json()["state"]
    finally:
        second.end()
