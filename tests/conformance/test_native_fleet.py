"""The desired fleet over HTTP: revisions, conflicts, refusals; Paddler's state is ``default``."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import trio
from native_client import Json, RunningBalancer, open_answer, running_balancer
from paddler_agent import serving_agent

CODER: Json = {"name": "coder", "model": {"LocalToAgent": "/c.gguf"}, "aliases": ["gpt-4o"]}
CHAT: Json = {"name": "default", "model": {"LocalToAgent": "/m.gguf"}}


def both(**coder: Json) -> Json:
    return {"deployments": [{**CODER, **coder}, CHAT]}


async def ask(
    balancer: RunningBalancer, method: str, path: str, body: Json = None
) -> httpx.Response:
    url = balancer.management_url(f"/api/v2/{path}")
    return await balancer.http.request(method, url, json=body)


async def put(balancer: RunningBalancer, state: Json, **more: Json) -> httpx.Response:
    return await ask(balancer, "PUT", "fleet", {"state": state, **more})


async def show(balancer: RunningBalancer) -> Json:
    return (await ask(balancer, "GET", "fleet")).json()


async def test_a_fleet_is_stored_shown_and_kept_over_a_restart(tmp_path: Path) -> None:
    database = f"file://{tmp_path}/state.json"
    async with running_balancer(state_database=database) as balancer:
        empty = await show(balancer)
        assert (empty["revision"]["revision"], empty["deployments"]) == (0, [])
        answer = await put(balancer, both(), note="first", expected_revision=0)
        assert answer.status_code == 200, answer.text
        stored = answer.json()
        assert (stored["revision"], stored["note"], stored["author"]) == (1, "first", "anonymous")
        spec = stored["state"]["deployments"][0]
        assert spec["parameters"]["context_size"] == 8192, "what is left out has its default"
        assert (spec["replicas"], spec["rollout"]["canary"]) == ("all", 1)
        shown = await show(balancer)
        assert shown["revision"] == stored
        assert [each["name"] for each in shown["deployments"]] == ["coder", "default"]
        assert (await put(balancer, stored["state"], note="again")).json() == stored
    async with running_balancer(state_database=database) as balancer:
        again = await show(balancer)
        for before, after in zip(shown["deployments"], again["deployments"], strict=True):
            before["rollout"]["started"] = after["rollout"]["started"]  # it begins anew
        assert again == shown
        assert (await balancer.desired_state())["model"] == CHAT["model"]
    (tmp_path / "state.json.fleet.json").unlink()
    async with running_balancer(state_database=database) as balancer:
        left = (await show(balancer))["revision"]
        assert [each["name"] for each in left["state"]["deployments"]] == ["default"]
        assert left["author"] == "state file"


async def test_paddlers_state_is_the_deployment_default_both_ways() -> None:
    async with running_balancer() as balancer, serving_agent(balancer.management, "a0") as agent:
        state = await balancer.desired_state()
        await put(balancer, both())
        sent = await agent.next_state()
        assert sent["model"] == CHAT["model"], "a 4.1 agent serves default"
        assert await balancer.desired_state() == {**state, "model": CHAT["model"]}
        other = {**state, "model": {"LocalToAgent": "/n.gguf"}}
        assert (await balancer.put_state(other)).status_code == 204
        revision = (await show(balancer))["revision"]
        assert revision["revision"] == 2
        default = revision["state"]["deployments"][1]
        assert (default["name"], default["model"]) == ("default", other["model"])
        assert (await balancer.put_state(other)).status_code == 204
        assert (await show(balancer))["revision"] == revision
        shown = (await show(balancer))["deployments"]
        assert shown[0]["replicas"] == {"wanted": 0, "serving": 0}, "no agent of ours is there"
        assert shown[0]["phase"] == "waiting"
        assert shown[1]["replicas"]["wanted"] == 1


async def test_another_revision_than_the_expected_one_is_409() -> None:
    async with running_balancer() as balancer:
        await put(balancer, both())
        answer = await put(balancer, both(priority=1), expected_revision=0)
        assert answer.status_code == 409
        assert (
            "revision 0 was expected, but 1 is in force, stored by anonymous at 20" in answer.text
        )
        assert "then apply again" in answer.text
        assert (await put(balancer, both(priority=1), expected_revision=1)).status_code == 200
        undone = await ask(balancer, "POST", "fleet/undo", {"expected_revision": 1})
        assert undone.status_code == 409


async def test_history_is_newest_first_and_undo_goes_back_in_it() -> None:
    async with running_balancer() as balancer:
        nothing = await ask(balancer, "POST", "fleet/undo")
        assert (nothing.status_code, "nothing to undo" in nothing.text) == (409, True)
        for priority in (1, 2):
            await put(balancer, both(priority=priority), note=f"priority {priority}")
        found = (await ask(balancer, "GET", "fleet/history")).json()["revisions"]
        assert [each["revision"] for each in found] == [2, 1, 0]
        assert found[0] == (await show(balancer))["revision"]
        undone = (await ask(balancer, "POST", "fleet/undo")).json()
        assert (undone["revision"], undone["note"]) == (3, "undo: as revision 1")
        assert undone["state"]["deployments"] == found[1]["state"]["deployments"]
        gone = (await ask(balancer, "POST", "fleet/undo", {"to": 0, "note": "away"})).json()
        assert (gone["note"], gone["state"]) == ("away", {"deployments": []})
        assert (await balancer.desired_state())["model"] == "None"
        assert (await ask(balancer, "POST", "fleet/undo", {"to": 77})).status_code == 409


async def test_an_undo_whose_body_is_not_said_to_be_json_is_no_undo_of_the_last() -> None:
    async with running_balancer() as balancer:
        for priority in (1, 2, 3):
            await put(balancer, both(priority=priority))
        url = balancer.management_url("/api/v2/fleet/undo")
        refused = await balancer.http.post(url, content=b'{"to": 1}')
        assert refused.status_code == 400
        assert (await show(balancer))["revision"]["revision"] == 3
        undone = await balancer.http.post(url, headers={"content-type": "application/json"})
        assert undone.json()["note"] == "undo: as revision 2", "a type without a body"


async def test_a_dry_run_names_what_would_change_and_stores_nothing() -> None:
    async with running_balancer() as balancer:
        await put(balancer, both())
        new = {"deployments": [{**CODER, "template": "{{ x }}"}, {**CODER, "name": "b"}]}
        new["deployments"][1]["aliases"] = []
        body = {"state": new, "note": ""}
        answer = await ask(balancer, "PUT", "fleet?dry_run=true", body)
        assert answer.json() == {
            "changes": [
                {"deployment": "coder", "change": "in_place", "fields": ["template"]},
                {"deployment": "b", "change": "added", "fields": []},
                {"deployment": "default", "change": "removed", "fields": []},
            ]
        }
        assert (await show(balancer))["revision"]["revision"] == 1
        for query in ("dry_run=yes", "dry_run=true&dry_run=true", "dryrun=true"):
            assert (await ask(balancer, "PUT", f"fleet?{query}", body)).status_code == 400


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"state": both(slots=0)}, "deployment 'coder': expected an integer in 1..4096, got 0"),
        ({"state": both(color=1)}, "'coder': unknown field 'color' @ $.state.deployments[0]"),
        ({"state": both(), "notes": ""}, "unknown field 'notes'"),
        ({"state": both(), "note": "x" * 1025}, "1025 characters, the limit is 1024 @ $.note"),
        ({"state": both(), "expected_revision": -1}, "got -1 @ $.expected_revision"),
        (
            {"state": both(parameters={"n_batch": 2**31})},
            "deployment 'coder': n_batch is 2147483648 tokens, the limit is 2147483647",
        ),
    ],
)
async def test_a_refusal_is_400_and_names_deployment_and_field(body: Json, problem: str) -> None:
    async with running_balancer() as balancer:
        answer = await ask(balancer, "PUT", "fleet", body)
        assert answer.status_code == 400
        assert problem in answer.text
        assert (await show(balancer))["revision"]["revision"] == 0


async def test_without_a_rollout_there_is_none_to_order_about() -> None:
    async with running_balancer() as balancer:
        assert (await ask(balancer, "GET", "rollout")).json() == {"rollouts": []}
        for order in ("pause", "resume", "abort", "undo"):
            answer = await ask(balancer, "POST", f"rollout/coder/{order}")
            assert (answer.status_code, "'coder'" in answer.text) == (404, True)
        assert (await ask(balancer, "POST", "rollout/coder/explode")).status_code == 404
        async with open_answer(balancer.management, "GET", "/api/v2/rollout/stream") as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            with trio.fail_after(60):
                line = await stream.next_text_line()
        assert json.loads(line.removeprefix("data: ")) == {"rollouts": []}
