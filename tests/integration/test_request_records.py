"""What operators ask about requests, with real agents: where they were and why; and ending them."""

from __future__ import annotations

import csv
import io
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import trio
from fleet import Fleet
from streams import RAW, Heard, listen, song

from cli_in_process import invoke
from no_tls import NO_TLS


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(agents=2, slots=2, balancer_options=["--capture-prompts"]) as running:
        yield running


def delete(url: str) -> int:
    return httpx.delete(url, verify=NO_TLS, timeout=60).status_code


def get(fleet: Fleet, path: str) -> Any:
    answer = httpx.get(f"{fleet.management_url}{path}", verify=NO_TLS, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streaming(fleet: Fleet, heard: Heard) -> dict[str, Any]:
    """The view of the only request in flight, once it has results."""
    while True:
        requests = get(fleet, "/api/v2/requests?state=in_flight")["requests"]
        if requests and requests[0]["phase"] == "streaming" and heard.tokens:
            assert len(requests) == 1
            return dict(requests[0])
        await trio.sleep(0.02)


async def test_an_operator_cancels_a_request_and_its_client_is_informed(fleet: Fleet) -> None:
    heard = Heard()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(listen, fleet.inference, RAW, song(), heard))
            view = await streaming(fleet, heard)
            assert view["route"] == RAW
            path = f"{fleet.management_url}/api/v2/requests/{view['key']}"
            assert delete(path) == 204
    assert heard.endings == ["Error 499"]
    assert heard.error == "An operator cancelled this request"
    shown = get(fleet, f"/api/v2/requests/{view['key']}")
    assert shown["request"]["ending"]["kind"] == "cancelled"
    assert "cancelled" in shown["explanation"][-1]
    assert delete(path) == 409
    assert delete(f"{path}0000") == 404


async def test_a_request_that_moved_shows_both_agents(fleet: Fleet) -> None:
    heard = Heard()
    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            body = song(max_tokens=600)
            await nursery.start(partial(listen, fleet.inference, RAW, body, heard))
            view = await streaming(fleet, heard)
            lost = view["placements"][0]["agent"]
            fleet.agents[lost].signal(signal.SIGKILL)
    assert heard.endings == ["Done"]
    request = get(fleet, f"/api/v2/requests/{view['id']}")["request"]
    first, second = request["placements"]
    assert first["ending"].startswith("lost")
    assert first["agent"] == lost != second["agent"]
    assert "the model that began the answer" in second["why"]
    assert request["continuations"] == 1
    assert first["prompt_tokens"] > 0
    assert first["prefill_ms"] >= 0
    assert second["first_ms"] >= second["at_ms"]
    events = get(fleet, "/api/v2/agents/history")["events"]
    assert [each["event"] for each in events if each["agent"] == lost][-1] == "left"
    fleet.start_agent(lost)
    fleet.wait_serving(2)


def test_lists_are_filtered_paged_and_exported(fleet: Fleet) -> None:
    for number in range(3):
        httpx.post(
            f"{fleet.inference_url}/v1/completions",
            json={"model": "m", "prompt": f"Once {number}", "max_tokens": 3, "ignore_eos": True},
            headers={"X-Paddler-Client": "=app"},
            verify=NO_TLS,
            timeout=60,
        ).raise_for_status()
    page = get(fleet, "/api/v2/requests?client=%3Dapp&limit=2&ending=done")
    assert [each["client"] for each in page["requests"]] == ["=app", "=app"]
    rest = get(fleet, f"/api/v2/requests?client=%3Dapp&limit=2&before={page['next']}")
    assert len(rest["requests"]) == 1
    assert rest["next"] is None
    text = httpx.get(
        f"{fleet.management_url}/api/v2/requests?format=csv", verify=NO_TLS, timeout=60
    ).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) >= 3
    assert rows[0]["client"] == "'=app", "a spreadsheet would compute it"
    assert rows[0]["tokens"] == "3"
    assert int(rows[0]["prompt_tokens"]) > 0
    for query, named in (
        ("limit=0", "limit is '0'"),
        ("limit=1001", "1 to 1000"),
        ("state=lost", "in_flight, finished, all"),
        ("whatever=1", "'whatever' is no parameter"),
    ):
        answer = httpx.get(
            f"{fleet.management_url}/api/v2/requests?{query}", verify=NO_TLS, timeout=60
        )
        assert answer.status_code == 400
        assert named in answer.text


def test_the_operator_reads_what_was_asked_and_answered_if_it_is_captured(fleet: Fleet) -> None:
    answer = httpx.post(
        f"{fleet.inference_url}/v1/completions",
        json={"model": "m", "prompt": "Once upon a midnight", "max_tokens": 8},
        headers={"X-Paddler-Client": "captured"},
        verify=NO_TLS,
        timeout=60,
    ).json()
    (listed,) = get(fleet, "/api/v2/requests?client=captured")["requests"]
    capture = get(fleet, f"/api/v2/requests/{listed['id']}")["request"]["capture"]
    assert "Once upon a midnight" in capture["request"]
    assert capture["answer"] == answer["choices"][0]["text"] != ""


def test_clients_without_a_key_are_told_apart_by_address_program_and_user(fleet: Fleet) -> None:
    """What a stranger writes is text: cut, and everything in it is visible."""
    for number, (program, user) in enumerate([("kit/1.0", "alice"), ("\x1b[31mkit" * 40, "b\n")]):
        httpx.post(
            f"{fleet.inference_url}/v1/completions",
            json={"prompt": "Once", "max_tokens": 1, "user": user},
            headers={"User-Agent": program.encode(), "X-Request-Id": f"kit{number}"},
            verify=NO_TLS,
            timeout=60,
        ).raise_for_status()
    first, second = (get(fleet, f"/api/v2/requests/kit{n}")["request"] for n in range(2))
    assert first["client"] == ""
    assert first["source"] == "127.0.0.1, kit/1.0, user alice"
    assert second["source"].startswith("127.0.0.1, \\x1b[31mkit")
    assert second["source"].endswith("user b\\n")
    assert len(second["source"]) < 200
    query = urlencode({"client": first["source"]})
    listed = get(fleet, f"/api/v2/requests?{query}")["requests"]
    assert [each["id"] for each in listed] == ["kit0"]
    explained = get(fleet, "/api/v2/requests/kit0")["explanation"]
    assert "a client without a key (127.0.0.1, kit/1.0, user alice)" in explained[0]
    lines = invoke("requests", "--wide", f"--management-addr={fleet.management}").output
    assert "127.0.0.1, kit/1.0, user alice" in lines
    assert "\x1b[31mkit" not in lines
    assert [each["revision"] for each in first["placements"]] == [1]
