"""Limits of keys with real daemons and the official clients: what each raises, and what comes back
when a request is over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import attrs
import httpx
import openai
import pytest
import trio
import trio_websocket
from fleet import END_S, Fleet
from streams import CONVERSATION, story

from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)
from paddler_trio.balancer.keys.key_terms import KeyTerms
from paddler_trio.scheduler.limits.key_limits import KeyLimits

EXPIRED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TERMS = {
    "minute": KeyTerms(limits=KeyLimits(requests_per_minute=5)),
    "claude": KeyTerms(limits=KeyLimits(requests_per_minute=1)),
    "single": KeyTerms(limits=KeyLimits(max_concurrent=1)),
    "daily": KeyTerms(limits=KeyLimits(tokens_per_day=20)),
    "socket": KeyTerms(limits=KeyLimits(requests_per_minute=2)),
    "over": KeyTerms(expires=EXPIRED),
    "free": KeyTerms(),
    "ops": KeyTerms(),
    "both": KeyTerms(limits=KeyLimits(requests_per_minute=1)),
}
SCOPES = {
    "ops": frozenset({KeyScope.MANAGEMENT}),
    "both": frozenset(KeyScope),
}
INFERENCE = frozenset({KeyScope.INFERENCE})
CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@attrs.frozen
class Limited:
    """A fleet, and the keys of its clients."""

    fleet: Fleet
    secrets: dict[str, str]
    audit: Path

    def openai_as(self, name: str) -> openai.OpenAI:
        http = openai.DefaultHttpxClient(trust_env=False)
        url, key = f"{self.fleet.inference_url}/v1", self.secrets[name]
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0, http_client=http)

    def post(self, path: str, body: object, name: str) -> httpx.Response:
        return httpx.post(
            self.fleet.inference_url + path,
            json=body,
            headers={"x-api-key": self.secrets[name]},
            trust_env=False,
            timeout=60,
        )

    def manage(self, method: str, path: str, body: object = None) -> httpx.Response:
        return httpx.request(
            method,
            self.fleet.management_url + path,
            json=body,
            headers={"x-api-key": self.secrets["ops"]},
            trust_env=False,
            timeout=60,
        )

    def wait_until_buffered(self, number: int) -> None:
        self.fleet.wait_until_buffered(number, headers={"x-api-key": self.secrets["ops"]})

    def used(self, name: str) -> dict[str, int]:
        keys = self.manage("GET", "/api/v2/keys").json()["keys"]
        (used,) = [key["used"] for key in keys if key["name"] == name]
        assert isinstance(used, dict)
        return used


def until(is_so: Callable[[], bool], what: str) -> None:
    """No stream tells of it: the fleet's has nothing to say of what is no agent's."""
    give_up_s = time.monotonic() + END_S
    while not is_so():
        assert time.monotonic() < give_up_s, f"not in time: {what}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder = tmp_path_factory.mktemp("limits")
    content, secrets = KeyFile(), {}
    for name, terms in TERMS.items():
        secrets[name] = new_secret()
        scopes = SCOPES.get(name, INFERENCE)
        key = StoredKey.of(secrets[name], name=name, scopes=scopes, created="", terms=terms)
        content = content.having(key)
    write_key_file(folder / "keys.json", content)
    options = [
        f"--api-key-file={folder / 'keys.json'}",
        f"--audit-log={folder / 'audit.log'}",
        f"--state-database=file://{folder / 'state.json'}",
        "--insecure-management",
        "--buffered-request-timeout=60000",
    ]
    with Fleet.start(agents=1, slots=1, balancer_options=options) as fleet:
        yield Limited(fleet, secrets, folder / "audit.log")


def test_openais_client_raises_its_rate_limit_error(limited: Limited) -> None:
    with limited.openai_as("minute") as client:
        first = client.chat.completions.with_raw_response.create(**CHAT, n=2)
        assert first.headers["x-ratelimit-limit-requests"] == "5"
        assert first.headers["x-ratelimit-remaining-requests"] == "3"  # two answers are two
        assert first.headers["ratelimit-policy"] == '"requests_per_minute";q=5;w=60'
        assert first.headers["ratelimit"].startswith('"requests_per_minute";r=3;t=')
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**CHAT, "temperature": "hot"})
        client.models.list()  # reading is no request
        chunks = list(client.chat.completions.create(**CHAT, stream=True))
        assert chunks
        tokens = limited.post("/v1/messages/count_tokens", CHAT, "minute")
        assert tokens.headers["anthropic-ratelimit-requests-remaining"] == "0"
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**CHAT)
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.type == "rate_limit_error"
        assert "'minute' is at its limit of 5 requests in a minute" in str(refused.value)
        headers = refused.value.response.headers
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["x-ratelimit-reset-requests"] in {"1m0s", f"{headers['retry-after']}s"}
    native = limited.post(CONVERSATION, story(1, max_tokens=1), "minute")
    assert native.status_code == 429
    assert native.headers["content-type"].startswith("text/plain")
    assert int(native.headers["retry-after"]) <= 60
    assert "try again in" in native.text
    llama = limited.post("/completion", {"prompt": "a", "n_predict": 1}, "minute")
    assert llama.json()["error"]["code"] == "rate_limit_exceeded"
    assert limited.used("minute")["requests_last_minute"] == 5


def test_anthropics_client_raises_its_rate_limit_error(limited: Limited) -> None:
    http = anthropic.DefaultHttpxClient(trust_env=False)
    url, key = limited.fleet.inference_url, limited.secrets["claude"]
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, http_client=http) as client:
        first = client.messages.with_raw_response.create(**CHAT, metadata={"user_id": "u1"})
        assert first.headers["anthropic-ratelimit-requests-limit"] == "1"
        assert first.headers["anthropic-ratelimit-requests-remaining"] == "0"
        reset = datetime.fromisoformat(first.headers["anthropic-ratelimit-requests-reset"])
        assert 0 < (reset - datetime.now(UTC)).total_seconds() <= 61
        with pytest.raises(anthropic.RateLimitError) as refused:
            client.messages.create(**CHAT)
        assert isinstance(refused.value.body, dict)
        assert refused.value.body["error"]["type"] == "rate_limit_error"
        assert int(refused.value.response.headers["retry-after"]) <= 60


def test_one_at_a_time_counts_who_waits_and_ends_with_whoever_leaves(limited: Limited) -> None:
    drain = "/api/v2/agents/a1/drain"
    assert limited.manage("POST", drain).status_code == 200
    try:
        headers = {"x-api-key": limited.secrets["single"]}
        url = limited.fleet.inference_url + CONVERSATION
        with httpx.stream(
            "POST", url, json=story(2), headers=headers, trust_env=False, timeout=60
        ) as waiting:  # for a slot; its status is sent at once
            assert waiting.headers["ratelimit"] == '"max_concurrent";r=0'
            refused = limited.post("/v1/chat/completions", CHAT, "single")
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert "1 request at once" in refused.json()["error"]["message"]
            assert limited.used("single")["concurrent"] == 1
        until(  # the client has left in the middle
            lambda: limited.used("single")["concurrent"] == 0, "the request has ended"
        )
    finally:
        assert limited.manage("DELETE", drain).status_code == 200
    assert limited.post("/v1/chat/completions", CHAT, "single").status_code == 200
    assert limited.used("single")["concurrent"] == 0


def test_tokens_of_a_day_are_those_that_were_reported(limited: Limited) -> None:
    answer = limited.post("/v1/chat/completions", {**CHAT, "max_tokens": 30}, "daily")
    usage = answer.json()["usage"]
    assert usage["total_tokens"] >= 20
    assert limited.used("daily")["tokens_today"] == usage["total_tokens"]
    with limited.openai_as("daily") as client, pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(**CHAT)
    headers = refused.value.response.headers
    assert int(headers["retry-after"]) <= 86_400
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert '"tokens_per_day";q=20;qu="tokens";w=86400' in headers["ratelimit-policy"]


def test_each_message_of_a_socket_is_a_request(limited: Limited) -> None:
    def ask(name: str, request: object) -> str:
        return json.dumps({"Request": {"id": name, "request": request}})

    async def main() -> dict[str, int]:
        host, port = limited.fleet.inference.rsplit(":", 1)
        headers = [(b"x-api-key", limited.secrets["socket"].encode())]
        errors: dict[str, int] = {}
        with trio.fail_after(60):
            async with trio_websocket.open_websocket(
                host,
                int(port),
                "/api/v1/inference_socket",
                use_ssl=False,
                extra_headers=headers,
            ) as socket:
                await socket.send_message(ask("bad", {"ContinueFromRawPrompt": {"nothing": 1}}))
                works = {"ContinueFromRawPrompt": {"raw_prompt": "a", "max_tokens": 1}}
                for name in ("good", "third"):
                    await socket.send_message(ask(name, works))
                while len(errors) < 3:
                    message = json.loads(await socket.get_message())
                    if "Error" in message:
                        error = message["Error"]
                        errors[error["request_id"]] = error["error"]["code"]
                    elif "Done" in json.dumps(message):
                        errors[message["Response"]["request_id"]] = 200
        return errors

    assert trio.run(main) == {"bad": 400, "good": 200, "third": 429}


def test_a_message_that_is_stopped_or_left_gives_its_place_back(limited: Limited) -> None:
    works = {"ContinueFromRawPrompt": {"raw_prompt": "a", "max_tokens": 1}}

    async def main() -> list[object]:
        host, port = limited.fleet.inference.rsplit(":", 1)
        headers = [(b"x-api-key", limited.secrets["single"].encode())]
        path, heard = "/api/v1/inference_socket", []
        with trio.fail_after(60):
            for names in (("one", "two"), ("three",)):
                async with trio_websocket.open_websocket(
                    host, int(port), path, use_ssl=False, extra_headers=headers
                ) as socket:
                    for name in names:
                        request = {"Request": {"id": name, "request": works}}
                        await socket.send_message(json.dumps(request))
                    if len(names) == 2:
                        heard.append(json.loads(await socket.get_message())["Error"])
                        stop = {"Notification": {"StopRespondingTo": "one"}}
                        await socket.send_message(json.dumps(stop))
                    await trio.to_thread.run_sync(limited.wait_until_buffered, len(names) % 2)
                    heard.append(limited.used("single")["concurrent"])
        return heard

    drain = "/api/v2/agents/a1/drain"
    assert limited.manage("POST", drain).status_code == 200
    try:
        error, after_stop, waits = trio.run(main)
        limited.wait_until_buffered(0)
    finally:
        assert limited.manage("DELETE", drain).status_code == 200
    assert isinstance(error, dict)
    assert (error["request_id"], error["error"]["code"]) == ("two", 429)
    assert (after_stop, waits) == (0, 1)
    assert limited.used("single")["concurrent"] == 0  # the client has left


def test_users_of_one_key_take_turns_on_every_surface(limited: Limited) -> None:
    """Four requests for one user arrive before those for two others, on three surfaces."""
    generate = story(1, max_tokens=2)
    asked: list[tuple[str, str, Any, dict[str, str]]] = [
        *((f"anna-{n}", CONVERSATION, generate, {"x-paddler-user": "anna"}) for n in range(4)),
        ("ben-0", "/v1/chat/completions", {**CHAT, "user": "ben"}, {}),
        ("carl-0", "/v1/messages", {**CHAT, "metadata": {"user_id": "carl"}}, {}),
    ]

    def post(name: str, path: str, body: object, more: dict[str, str]) -> int:
        headers = {"x-api-key": limited.secrets["free"], "x-request-id": name, **more}
        url = limited.fleet.inference_url + path
        answer = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
        return answer.status_code

    drain = "/api/v2/agents/a1/drain"
    assert limited.manage("POST", drain).status_code == 200
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = []
        try:
            for number, each in enumerate(asked, start=1):
                answers.append(threads.submit(post, *each))
                limited.wait_until_buffered(number)
        finally:
            assert limited.manage("DELETE", drain).status_code == 200
        assert [answer.result() for answer in answers] == [200] * len(asked)
    records = limited.manage("GET", "/api/v2/requests?client=free&state=finished").json()
    served = sorted(records["requests"], key=lambda each: each["placements"][0]["at_ms"])
    names = [each["id"] for each in served if "-" in each["id"]]
    assert names[:3] == ["anna-0", "ben-0", "carl-0"]
    assert names[3:] == ["anna-1", "anna-2", "anna-3"]
    assert "anna" not in limited.fleet.balancer.tail(5000).replace("anna-", "")


def test_the_panel_keeps_to_the_limits_of_the_key_that_signed_in(limited: Limited) -> None:
    url = f"{limited.fleet.management_url}/panel/"
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as browser:
        signed_in = browser.post("session", json={"key": limited.secrets["both"]})
        assert signed_in.status_code == 200, signed_in.text
        headers = {"x-csrf-token": signed_in.json()["csrf"]}
        chat = "inference/v1/chat/completions"
        answers = [browser.post(chat, json=CHAT, headers=headers) for _ in "ab"]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[1].json()["error"]["code"] == "rate_limit_exceeded"
        assert browser.delete("session", headers=headers).status_code == 204
    actions = [
        (each["who"], each["action"])
        for each in limited.manage("GET", "/api/v2/audit").json()["entries"]
    ]
    assert ("both", "sign-in") in actions
    assert ("both", "sign-out") in actions


def test_a_users_name_is_bounded_on_every_surface(limited: Limited) -> None:
    long = "u" * 513
    with limited.openai_as("free") as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, user=long)
    assert "user has 513 characters, the limit is 512" in str(refused.value)
    for path, body in ((CONVERSATION, story(1)), ("/v1/messages", CHAT)):
        headers = {"x-api-key": limited.secrets["free"], "x-paddler-user": long}
        url = limited.fleet.inference_url + path
        answer = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
        assert answer.status_code == 400
        assert "X-Paddler-User has 513 characters" in answer.text


def test_an_expired_key_says_since_when(limited: Limited) -> None:
    with limited.openai_as("over") as client, pytest.raises(openai.AuthenticationError) as refused:
        client.models.list()
    assert "'over' expired at 2026-01-02T03:04:05Z" in str(refused.value)


def test_a_key_is_made_with_limits_and_the_audit_log_has_it(limited: Limited) -> None:
    order = {"name": "made", "ttl_s": 3600, "requests_per_minute": 5}
    made = limited.manage("POST", "/api/v2/keys", order)
    assert made.status_code == 201, made.text
    assert made.json()["requests_per_minute"] == 5
    assert limited.manage("DELETE", "/api/v2/keys/made").status_code == 204
    shown = limited.manage("GET", "/api/v2/audit").json()
    actions = [
        (each["who"], each["action"], each["target"], each["outcome"]) for each in shown["entries"]
    ]
    assert ("ops", "key made", "made", "done") in actions
    assert actions[-1] == ("ops", "key revoked", "made", "done")
    until(lambda: "key revoked" in limited.audit.read_text(), "it is on the disk")
    text = limited.audit.read_text()
    assert made.json()["key"] not in text + json.dumps(shown)
    assert [json.loads(line)["seq"] for line in text.splitlines()][-1] == len(actions)


def test_tokens_of_the_day_are_on_the_disk_when_the_balancer_has_ended(limited: Limited) -> None:
    """The last test of this fleet: it ends it."""
    limited.post("/v1/chat/completions", {**CHAT, "max_tokens": 30}, "daily")
    used = limited.used("daily")["tokens_today"]
    assert used >= 20
    balancer = limited.fleet.balancer
    balancer.signal(signal.SIGTERM)
    assert balancer.wait() == 0
    stored = json.loads((limited.audit.parent / "state.json.key-usage").read_text())
    assert stored["tokens"]["daily"] == used
