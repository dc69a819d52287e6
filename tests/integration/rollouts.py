"""Deployments and rollouts over the management port of a fleet of real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from fleet import END_S, SERVING_S, Fleet

from no_tls import NO_TLS

QUICK = {"min_ready_s": 0.5, "progress_deadline_s": 60}


def deployment(
    model: Path, name: str = "default", *, context_size: int = 1024, **fields: object
) -> dict[str, Any]:
    """A deployment of this file, whose rollout takes half a second between its steps."""
    rules = {**QUICK, **fields.pop("rollout", {})}  # type: ignore[dict-item]  # rules by name
    return {
        "name": name,
        "model": {"LocalToAgent": str(model)},
        "parameters": {"context_size": context_size},
        "rollout": rules,
        **fields,
    }


def apply(fleet: Fleet, *deployments: dict[str, Any], note: str = "") -> int:
    """Store these; the number of the revision."""
    answer = httpx.put(
        f"{fleet.management_url}/api/v2/fleet",
        json={"state": {"deployments": deployments}, "note": note},
        trust_env=False,
        verify=NO_TLS,
        timeout=END_S,
    )
    assert answer.status_code == 200, answer.text
    revision: int = answer.json()["revision"]
    return revision


def current(fleet: Fleet) -> dict[str, Any]:
    """The revision in force."""
    answer = httpx.get(
        f"{fleet.management_url}/api/v2/fleet", trust_env=False, verify=NO_TLS, timeout=END_S
    )
    document: dict[str, Any] = answer.json()
    return document


def follow(
    fleet: Fleet, is_so: Callable[[dict[str, Any]], bool], name: str = "default"
) -> list[dict[str, Any]]:
    """All that is shown of this rollout until it is so, the last one last."""
    seen: list[dict[str, Any]] = []
    with httpx.stream(
        "GET",
        f"{fleet.management_url}/api/v2/rollout/stream",
        trust_env=False,
        verify=NO_TLS,
        timeout=SERVING_S,
    ) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            for rollout in json.loads(line.removeprefix("data: "))["rollouts"]:
                if rollout["deployment"] == name:
                    seen.append(rollout)
                    if is_so(rollout):
                        return seen
    raise AssertionError(f"the stream ended: {seen[-1:]}")


def ends(phase: str, revision: int | None = None) -> Callable[[dict[str, Any]], bool]:
    """A rollout, of this revision, is in this phase."""
    return lambda rollout: rollout["phase"] == phase and revision in (None, rollout["to"])


def order(fleet: Fleet, what: str, name: str = "default") -> httpx.Response:
    """``pause``, ``resume``, ``abort`` or ``undo``."""
    return httpx.post(
        f"{fleet.management_url}/api/v2/rollout/{name}/{what}",
        trust_env=False,
        verify=NO_TLS,
        timeout=END_S,
    )
