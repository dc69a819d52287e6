"""Many names over one set of weights: each answers as its own preset does, whatever else changes.

A preset here forces its answer to be one word, so that an answer of another one is seen.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
from fleet import BUNDLED_MODEL, END_S, Fleet
from rollouts import apply, current, deployment, ends, follow

WORDS = ("amber", "birch", "cedar", "delta")
MESSAGES = [{"role": "user", "content": "Say something."}]


def preset(word: str, **fields: object) -> dict[str, object]:
    return {
        "name": word,
        "constraint": {"type": "choice", "choices": [word]},
        "forced": ["constraint"],
        "max_tokens": {"least": 48, "most": 64},
        **fields,
    }


def presets(*words: str) -> list[dict[str, object]]:
    return [preset(word) for word in words]


Ask = Callable[[httpx.Client, str], str]


def by_chat(http: httpx.Client, model: str) -> str:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    body = {"model": model, "messages": MESSAGES, "max_tokens": 1, "response_format": schema}
    answer = _posted(http, "/v1/chat/completions", body)
    assert answer["model"] == model
    return str(answer["choices"][0]["message"]["content"])


def by_stream(http: httpx.Client, model: str) -> str:
    body = {"model": model, "messages": MESSAGES, "stream": True}
    text = ""
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, line
                assert chunk["model"] == model
                text += "".join(each["delta"].get("content") or "" for each in chunk["choices"])
    return text


def by_completion(http: httpx.Client, model: str) -> str:
    answer = _posted(http, "/completion", {"model": model, "prompt": "Say", "n_predict": 2})
    assert answer["model"] == model
    return str(answer["content"])


def by_messages(http: httpx.Client, model: str) -> str:
    answer = _posted(http, "/v1/messages", {"model": model, "messages": MESSAGES, "max_tokens": 2})
    assert answer["model"] == model
    return "".join(each["text"] for each in answer["content"] if each["type"] == "text")


def by_response(http: httpx.Client, model: str) -> str:
    answer = _posted(http, "/v1/responses", {"model": model, "input": "Say something."})
    assert answer["model"] == model
    said = (each for each in answer["output"] if each["type"] == "message")
    return "".join(part["text"] for each in said for part in each["content"])


def by_ollama(http: httpx.Client, model: str) -> str:
    body = {"model": f"{model}:latest", "messages": MESSAGES, "stream": False, "format": "json"}
    answer = _posted(http, "/api/chat", body)
    assert answer["model"] == f"{model}:latest"
    return str(answer["message"]["content"])


def by_native(http: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": {"Text": {"text": "Say"}}}
    answer = http.post("/api/v2/generate", json=body)
    assert answer.status_code == 200, answer.text
    results = [json.loads(line) for line in answer.text.splitlines()]
    return "".join(_content(each) for each in results)


APIS: tuple[Ask, ...] = (
    *(by_chat, by_stream, by_completion, by_messages, by_response, by_ollama, by_native),
)


def _posted(http: httpx.Client, path: str, body: Mapping[str, object]) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
    return answer.json()


def _content(result: Any) -> str:
    """The text of a content token, wherever in a line it stands."""
    if isinstance(result, dict):
        return "".join(
            each if name == "ContentToken" else _content(each) for name, each in result.items()
        )
    return ""


@attrs.define(eq=False)
class Asking:
    """Six clients that ask all APIs for all words; an answer that none of ``allowed`` is, when it
    was asked or when it came, is a failure."""

    url: str
    allowed: Mapping[str, set[str]]
    counts: Counter[tuple[str, str]] = attrs.field(factory=Counter, init=False)
    _news: threading.Condition = attrs.field(factory=threading.Condition, init=False)
    _failures: list[BaseException] = attrs.field(factory=list, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    @classmethod
    @contextmanager
    def of(cls, fleet: Fleet, allowed: Mapping[str, set[str]]) -> Iterator[Asking]:
        asking = cls(fleet.inference_url, allowed)
        with ThreadPoolExecutor(6) as pool:
            for number in range(6):
                pool.submit(asking._client, number)
            try:
                yield asking
            finally:
                with asking._news:
                    asking._is_over = True
        assert asking._failures == []

    def wait_for_answers(self, count: int) -> None:
        """So many more; what failed is raised."""
        with self._news:
            before = self.counts.total()
            is_enough = self._news.wait_for(
                lambda: self._failures or self.counts.total() >= before + count, END_S
            )
            assert self._failures == []
            assert is_enough

    def _client(self, number: int) -> None:
        try:
            with httpx.Client(base_url=self.url, trust_env=False, timeout=END_S) as http:
                for turn in itertools.count(number):
                    if self._is_over:
                        return
                    self._ask(http, APIS[turn % len(APIS)], WORDS[turn // 2 % len(WORDS)])
        except BaseException as error:
            with self._news:
                self._failures.append(error)
                self._news.notify_all()
            raise

    def _ask(self, http: httpx.Client, ask: Ask, model: str) -> None:
        allowed = set(self.allowed[model])
        said = ask(http, model)
        allowed |= self.allowed[model]
        assert said in allowed, f"{model} by {ask.__name__} said {said!r}: {allowed}"
        with self._news:
            self.counts[ask.__name__, model] += 1
            self._news.notify_all()


def test_no_answer_is_of_another_preset_while_models_roll_and_presets_change(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other.gguf"
    shutil.copyfile(BUNDLED_MODEL, other)
    state = f"--state-database=file://{tmp_path}/state.json"
    with Fleet.start(agents=2, slots=3, model=None, balancer_options=[state]) as fleet:
        rolling, steady = presets(*WORDS[:2]), presets(*WORDS[2:])

        def revision(model: Path, *, delta: str = "delta") -> int:
            changed = [
                steady[0],
                preset("delta", constraint={"type": "choice", "choices": [delta]}),
            ]
            return apply(
                fleet,
                deployment(model, presets=rolling),
                deployment(BUNDLED_MODEL, "second", presets=changed, slots=2),
            )

        revision(BUNDLED_MODEL)
        names = {"a1", "a2", "a1.second", "a2.second"}
        fleet.wait_until(
            lambda view: {a["name"] for a in view["agents"] if a["is_accepting"]} == names,
            what="both agents serve both",
            nobody_ends=True,
        )
        engines = {name: agent.engine_pids for name, agent in fleet.agents.items()}
        served = {each["id"]: each["served_state"] for each in fleet.view()["agents"]}

        answers = {word: {word} for word in WORDS}
        with Asking.of(fleet, answers) as asking:
            # in place: no engine is loaded, and no agent hears of it
            for word in ("ember", "delta", "ember"):
                answers["delta"] |= {word}
                changed = revision(BUNDLED_MODEL, delta=word)
                assert _answers(fleet, "delta", word), "from the next request on"
                asking.wait_for_answers(20)
            assert {name: each.engine_pids for name, each in fleet.agents.items()} == engines
            assert {each["id"]: each["served_state"] for each in fleet.view()["agents"]} == served
            # the weights of one deployment roll twice
            for model in (other, BUNDLED_MODEL):
                changed = revision(model, delta="ember")
                follow(fleet, ends("complete", changed))
                asking.wait_for_answers(20)
            answers["delta"] = {"ember"}
            asking.wait_for_answers(50)
        assert {api for api, _ in asking.counts} == {each.__name__ for each in APIS}
        for word in WORDS:
            assert sum(count for (_, asked), count in asking.counts.items() if asked == word) >= 5

        # what is desired is kept, and agents that come back answer by it
        revision_before = current(fleet)["revision"]
        fleet.take_over()
        assert current(fleet)["revision"] == revision_before
        assert _answers(fleet, "delta", "ember")
        fleet.restart_balancer()
        assert current(fleet)["revision"] == revision_before
        assert _answers(fleet, "delta", "ember")


def _answers(fleet: Fleet, model: str, word: str) -> bool:
    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=END_S) as http:
        return by_chat(http, model) == word
