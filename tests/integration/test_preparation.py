"""What a request makes its preparation cost stays that request's: real processes, real limits.

Each hostile request is one that once ended an agent, or kept it busy for everybody.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from paddler_trio.agent.children import preparation
from paddler_trio.agent.children.preparation import Preparation
from paddler_trio.agent.children.preparation_server import LanguageRefusedError, PreparationServer
from paddler_trio.errors import PreparationError, leaves
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.processes.preparation.job_limits import LOADING_BYTES, MAX_CPU_S, MEMORY_BYTES
from paddler_trio.processes.preparation.preparation_messages import (
    Answered,
    Job,
    LanguageFacts,
    Prepared,
    PreparedGeneration,
    Refused,
)
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.engine.media import Senses
from paddler_trio.wire.paddler.agent_issue import ChatTemplateDoesNotCompile
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    ChatTemplate,
)
from paddler_trio.wire.trio.request_frame import RequestFrame, read_head

MODEL = str(files("paddler_trio.models") / "paddler-demo.gguf")
READY = Ready(cells=2048, n_batch=512, n_ctx_train=2048, n_vocab=1536, senses=Senses(True))
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="500" height="500">{}</svg>'


def work(body: dict[str, Any]) -> RequestFrame:
    start = {"id": "1", "request": {"Generate": body}, "seed": 7, "tokens": []}
    text = json.dumps({"Trio": {"Start": start}})
    frame = read_head(text, speaks_trio=True)
    assert frame is not None
    return frame


def raw(text: str, **more: Any) -> RequestFrame:
    return work({"prompt": {"Text": {"text": text}}, **more})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is meant to be answered is, and what is meant to be refused is so by its own limit, also
    where a worker gives way to others for minutes."""
    monkeypatch.setattr(preparation, "WALL_LIMIT_S", 250.0)


def drawing(inside: str) -> RequestFrame:
    content = base64.b64encode(SVG.format(inside).encode()).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{content}"}}
    message = {"role": "user", "content": [part]}
    return work({"prompt": {"Conversation": {"messages": [message]}}})


def question(name: str, **fields: Any) -> RequestFrame:
    text = json.dumps({"Trio": {"Ask": {"id": "q", "question": {name: fields}}}})
    frame = read_head(text, speaks_trio=True)
    assert frame is not None
    return frame


def desired(**changes: Any) -> AgentDesiredState:
    default = BalancerDesiredState.default()
    fields = {f.name: getattr(default, f.name) for f in attrs.fields(AgentDesiredState)}
    return AgentDesiredState(**{**fields, **changes})


@attrs.define(eq=False)
class Prepares:
    preparation: Preparation

    async def __call__(self, frame: RequestFrame, client: str = "") -> Prepared:
        return await self.preparation.prepare(Job(frame, 1, READY), client=client)

    @property
    def server_pid(self) -> int:
        process = self.preparation.server._process
        assert process is not None
        return process.pid

    @property
    def workers(self) -> list[int]:
        """Forked by the server and alive."""
        path = Path(f"/proc/{self.server_pid}/task/{self.server_pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    async def until_workers(self, count: int) -> None:
        await until(lambda: len(self.workers) == count)


@asynccontextmanager
async def preparing(**changes: Any) -> AsyncIterator[Prepares]:
    async with trio.open_nursery() as nursery:
        up: list[Preparation] = []
        is_up = trio.Event()

        def on_up(server: PreparationServer, facts: LanguageFacts) -> None:
            up.append(Preparation(server, facts))
            is_up.set()

        source = LanguageSource(paths=(MODEL,), desired=desired(**changes))
        nursery.start_soon(PreparationServer(source, on_up).run)
        with trio.fail_after(60):
            await is_up.wait()
        try:
            yield Prepares(up[0])
        finally:
            up[0].close()
            nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    """The kernel tells nobody when a process comes or goes."""
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.005)


def peak_bytes(pid: int) -> int:
    """0 for a process that has ended: it has no memory left, a zombie has no such line."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def problem(prepared: Prepared) -> str:
    assert isinstance(prepared, Refused), prepared
    ((_, content),) = prepared.result.items()
    return content["message"] if isinstance(content, dict) else str(content)


async def test_ordinary_requests_are_prepared_one_after_the_other() -> None:
    async with preparing() as prepare:
        first = await prepare(raw("hello"))
        assert isinstance(first, PreparedGeneration)
        assert first.num_prompt_tokens > 0
        for number in range(20):
            assert isinstance(await prepare(raw(f"hello {number}")), PreparedGeneration)
        await until(lambda: len(prepare.workers) <= 1)


FILTER = (
    '<filter id="f"><feTurbulence baseFrequency="0.01" numOctaves="100000000"/></filter>'
    '<rect width="500" height="500" filter="url(#f)"/>'
)
HOSTILE = {
    "nested SVG groups": drawing('<g opacity="0.5">' * 300 + "</g>" * 300),
    "an SVG filter": drawing(FILTER),
}


LONG_FILTER = f"{FILTER}<!--{'x' * 300_000}-->"
"""So much processor time may be spent on it that nobody comes too late to see who does."""


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_ends_its_process_costs_only_its_request(name: str) -> None:
    async with preparing() as prepare:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prepare, HOSTILE[name])
            neighbours = [await prepare(raw(f"neighbour {i}")) for i in range(20)]
        assert all(isinstance(each, PreparedGeneration) for each in neighbours)
        ended = problem(await prepare(HOSTILE[name]))
        assert "one request may" in ended
        assert isinstance(await prepare(raw("hello")), PreparedGeneration)


async def test_what_takes_too_long_is_refused_with_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "WALL_LIMIT_S", 0.3)
    async with preparing() as prepare:
        refused = await prepare(drawing(LONG_FILTER))
        assert "took longer than 0.3 s" in problem(refused)
        await prepare.until_workers(0)


async def test_alternatives_that_multiply_are_left_out() -> None:
    """What no grammar can hold is not enforced, and takes no time."""
    options = [
        {"anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {}}} for j in range(12)]}
        for i in range(8)
    ]
    async with preparing() as prepare:
        schema = json.dumps({"allOf": options})
        prepared = await prepare(raw("x", constraint={"type": "json_schema", "schema": schema}))
        assert isinstance(prepared, PreparedGeneration)


async def test_a_cancelled_request_leaves_no_process() -> None:
    async with preparing() as prepare:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                prepare, question("Detokenize", tokens=[7] * 200_000, with_pieces=True)
            )
            for _ in range(2):
                nursery.start_soon(prepare, drawing(LONG_FILTER))
            await until(lambda: len(prepare.workers) >= 2)
            nursery.cancel_scope.cancel()
        await prepare.until_workers(0)


async def test_a_prompt_that_fits_no_slot_is_refused_before_it_is_tokenised() -> None:
    async with preparing() as prepare:
        refused = await prepare(raw("hello " * 1_000_000))
        assert "one slot of this agent holds 2048" in problem(refused)


async def test_memory_is_bounded() -> None:
    """A template that doubles a text is an operator's; what it fills is the worker's own."""
    template = (
        "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}"
        "{% set ns.x = ns.x + [messages[0].content * 300] %}{% endfor %}"
    )
    async with preparing(chat_template_override=ChatTemplate(template)) as prepare:
        message = {"role": "user", "content": "x" * 1000}
        peaks = [0]
        refused: list[Prepared] = []

        async def ask() -> None:
            conversation = {"prompt": {"Conversation": {"messages": [message]}}}
            refused.append(await prepare(work(conversation)))

        def is_answered() -> bool:
            peaks.extend(peak_bytes(pid) for pid in prepare.workers)
            return bool(refused)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(is_answered)
        assert problem(refused[0])
        assert 0 < max(peaks) < 2 * MEMORY_BYTES


async def test_memory_is_bounded_while_a_template_is_read() -> None:
    """Its form is looked for by rendering it, in the process that no job's limits hold for yet."""
    template = f"{{% set t = (1).to_bytes({LOADING_BYTES * 3 // 2}, 'big') %}}"
    async with preparing(chat_template_override=ChatTemplate(template)) as prepare:
        assert 0 < peak_bytes(prepare.server_pid) < LOADING_BYTES
        assert isinstance(await prepare(raw("hello")), PreparedGeneration)


async def test_one_client_leaves_places_to_the_others() -> None:
    async with preparing() as prepare, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(prepare, HOSTILE["an SVG filter"], "greedy")
        await prepare.until_workers(4)
        assert isinstance(await prepare(raw("hello"), "modest"), PreparedGeneration)
        assert len(prepare.workers) <= 5
        nursery.cancel_scope.cancel()


SLOW_TEMPLATE = (
    "{% if messages[0].content == 'slow' %}{% for i in range(90000) %}{% for j in range(90000) %}"
    "{% endfor %}{% endfor %}{% endif %}<|im_start|>{{ messages[0].content }}"
)


async def test_a_slow_template_delays_no_prompt_that_needs_none() -> None:
    """Also of the same client, and where more conversations wait than may be rendered at once."""
    conversation = {
        "messages": [{"role": "user", "content": "slow"}],
        "template_kwargs": {"unused": "x" * 300_000},  # so much processor time may be spent on it
    }
    slow = work({"prompt": {"Conversation": conversation}})
    rendered: list[Prepared] = []

    async with preparing(chat_template_override=ChatTemplate(SLOW_TEMPLATE)) as prepare:

        async def render() -> None:
            rendered.append(await prepare(slow))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(render)
            await prepare.until_workers(4)
            for number in range(5):
                prompt = (
                    raw(f"hello {number}")
                    if number
                    else work({"prompt": {"Tokens": {"tokens": [7]}}})
                )
                assert isinstance(await prepare(prompt), PreparedGeneration)
            assert rendered == []
            nursery.cancel_scope.cancel()
        await until(lambda: len(prepare.workers) <= 1)


async def test_a_question_is_answered_with_its_limit() -> None:
    async with preparing() as prepare:
        answered = await prepare(question("Tokenize", text="hello"))
        assert isinstance(answered, Answered)
        assert json.loads(answered.frame)["Trio"]["Answer"]["answer"]["tokens"]
        answered = await prepare(question("Detokenize", tokens=[1, 2], with_pieces=True))
        assert isinstance(answered, Answered)
        assert len(json.loads(answered.frame)["Trio"]["Answer"]["answer"]["pieces"]) == 2
        answered = await prepare(question("Tokenize", text="x" * 4_000_001))
        assert isinstance(answered, Answered)
        answer = json.loads(answered.frame)["Trio"]["Answer"]
        assert (answer["answer"], answer["code"]) == (None, 400)


async def test_an_answer_that_would_end_the_link_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The balancer counts the values of every frame, and closes the link over too many."""
    monkeypatch.setattr(preparation, "LOWER_PRIORITY_AFTER_S", 250.0)  # they take seconds
    many = {
        "numbers": question("Tokenize", text="!?" * 600_000),
        "objects": question("Tokenize", text="!?" * 70_000, with_pieces=True),
    }
    async with preparing() as prepare:
        for name, frame in many.items():
            answered = await prepare(frame)
            assert isinstance(answered, Answered)
            answer = json.loads(answered.frame)["Trio"]["Answer"]
            assert (answer["answer"], answer["code"]) == (None, 413), name
            assert "the limit max_" in answer["problem"]


async def test_a_worker_that_was_ended_while_it_was_idle_costs_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preparation, "LOWER_PRIORITY_AFTER_S", 60.0)  # a slow job ends its worker
    async with preparing() as prepare:
        assert isinstance(await prepare(raw("hello")), PreparedGeneration)
        await prepare.until_workers(1)
        (idle,) = prepare.workers
        os.kill(idle, signal.SIGKILL)
        await until(lambda: not exists(idle))
        assert isinstance(await prepare(raw("hello again")), PreparedGeneration)


async def test_when_the_server_is_killed_its_workers_are_gone_and_jobs_are_told() -> None:
    workers: list[int] = []

    async def lose_the_server() -> None:
        async with preparing() as prepare, trio.open_nursery() as nursery:
            nursery.start_soon(prepare, drawing(LONG_FILTER))
            await prepare.until_workers(1)
            workers.extend(prepare.workers)
            os.kill(prepare.server_pid, signal.SIGKILL)

    with pytest.raises(BaseExceptionGroup) as raised:
        await lose_the_server()
    assert all(isinstance(leaf, PreparationError) for leaf in leaves(raised.value))
    await until(lambda: not any(map(exists, workers)))


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_template_that_does_not_compile_is_an_issue() -> None:
    source = LanguageSource(
        paths=(MODEL,), desired=desired(chat_template_override=ChatTemplate("{% if"))
    )
    with pytest.raises(BaseExceptionGroup) as raised:
        await PreparationServer(source, lambda *_: None).run()
    (refused,) = leaves(raised.value)
    assert isinstance(refused, LanguageRefusedError)
    assert isinstance(refused.refused.issue, ChatTemplateDoesNotCompile)


def test_the_limit_grows_with_the_request_and_ends() -> None:
    from paddler_trio.processes.preparation.job_limits import cpu_limit_s

    assert cpu_limit_s(100) < 1.1
    assert cpu_limit_s(100_000) == pytest.approx(6.0)
    assert cpu_limit_s(10**9) == MAX_CPU_S


async def test_abandoned_requests_leave_nothing_that_a_small_one_waits_for() -> None:
    message = {"role": "user", "content": ""}
    heavy = [
        raw("x", sampling={"logit_bias": [{"text": f"t{i}", "bias": 1} for i in range(60_000)]}),
        raw("x", constraint={"type": "regex", "pattern": "(a|b)*a(a|b){14}"}),
        HOSTILE["an SVG filter"],
        work({"prompt": {"Conversation": {"messages": [message] * 100_000}}}),
    ]
    async with preparing() as prepare:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for frame in heavy:
                    nursery.start_soon(prepare, frame, "abandons")
                await until(lambda: len(prepare.workers) >= 3)
                nursery.cancel_scope.cancel()
            assert isinstance(await prepare(raw("small"), "abandons"), PreparedGeneration)
        await until(lambda: len(prepare.workers) <= 1)
