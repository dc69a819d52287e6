"""The first moments of an engine: it cannot be started, dies, hangs, or computes nonsense.

The engines are small scripts that speak the pipe's language.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn

import attrs
import pytest
import trio

from paddler_trio.agent.children import engine_keeper, engine_process, preparation_server
from paddler_trio.agent.children.engine_crash import LoadFailedError
from paddler_trio.agent.children.engine_keeper import EngineKeeper
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation_server import PreparationServer
from paddler_trio.errors import EngineError, PreparationError, leaves
from paddler_trio.language.model_language import LanguageSource
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    LoadModel,
    Ready,
    Step,
    StopEmbedding,
    StopSequence,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    InferenceParameters,
    NoModel,
)

LOAD = LoadModel(
    model_path="/m.gguf",
    slots=1,
    context_size=256,
    n_batch=8,
    n_gpu_layers=0,
    k_cache_dtype="F16",
    v_cache_dtype="F16",
    threads=1,
    package_version="",
)
READY = """
import sys, time
from paddler_trio.wire.engine.engine_pipe import *
from paddler_trio.wire.engine.pipe_codec import body_length, encode

def send(frame):
    sys.stdout.buffer.write(encode(frame))
    sys.stdout.buffer.flush()

def take():
    prefix = sys.stdin.buffer.read(4)
    sys.stdin.buffer.read(body_length(prefix))

take()
send(Ready(256, 8, 256, 9))
take()
"""
PROVED = """
send(Step([SampledToken(0, 1, b"a", Logprobs([1], [b"a"], [-0.5]))], [Ending(0, "length", 8, 0)]))
"""


@attrs.define(eq=False)
class Heard:
    events: list[str] = attrs.field(factory=list)
    steps: list[object] = attrs.field(factory=list)

    def engine(self, script: str, load: LoadModel = LOAD) -> EngineProcess:
        return EngineProcess(
            load,
            lambda progress: None,
            lambda ready: self.events.append("ready"),
            self.steps.append,
            lambda stats: None,
            lambda: self.events.append("loaded"),
            command=[sys.executable, "-c", script],
        )


async def failure_of(engine: EngineProcess) -> EngineError:
    """Why it ended."""
    with trio.fail_after(30):
        try:
            await engine.run()
        except* EngineError as group:
            (error,) = leaves(group)
    assert isinstance(error, EngineError)
    return error


async def test_an_engine_serves_when_it_has_decoded_and_its_first_tokens_are_no_requests() -> None:
    heard = Heard()
    error = await failure_of(heard.engine(READY + PROVED + "send(Step([], []))"))
    assert heard.events == ["loaded", "ready"]
    assert len(heard.steps) == 1, "what comes after the proof"
    assert str(error).startswith("the engine died (exit status 0)")


async def test_an_engine_that_dies_of_its_first_decode_never_serves() -> None:
    heard = Heard()
    error = await failure_of(heard.engine(READY + "import os; os.abort()"))
    assert heard.events == ["loaded"]
    assert str(error).startswith("the engine died at its first decode (signal SIGABRT)")


@pytest.mark.parametrize(
    ("stop", "limit", "other", "pass_"),
    [
        (StopSequence(7), "STOP_S", EmbeddingStep([]), "pass"),
        (StopEmbedding(7), "EMBEDDING_STOP_S", Step([], []), "pass of documents"),
    ],
)
async def test_an_engine_that_answers_pings_and_ends_nothing_is_killed(
    monkeypatch: pytest.MonkeyPatch,
    stop: StopSequence | StopEmbedding,
    limit: str,
    other: object,
    pass_: str,
) -> None:
    monkeypatch.setattr(engine_process, "PING_S", 0.01)
    monkeypatch.setattr(engine_process, limit, 0.05)
    script = READY + PROVED + f"while True: take(); send(Pong()); send({other!r})"
    heard = Heard()
    engine = heard.engine(script)
    engine.on_ready = lambda ready: engine.send(stop)
    error = await failure_of(engine)
    assert f"no {pass_} ended for 0.05 s after a stop: killed" in str(error)
    assert error.kind == "unresponsive"


@pytest.mark.parametrize("stop", [StopSequence(7), StopEmbedding(7)])
async def test_an_engine_that_ends_a_pass_after_a_stop_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, stop: StopSequence | StopEmbedding
) -> None:
    for limit in ("STOP_S", "EMBEDDING_STOP_S"):
        monkeypatch.setattr(engine_process, limit, 1.0)
    monkeypatch.setattr(engine_process, "PING_S", 0.01)
    step = Step([], []) if isinstance(stop, StopSequence) else EmbeddingStep([])
    script = READY + PROVED + f"for _ in range(150): take(); send(Pong()); send({step!r})"
    heard = Heard()
    engine = heard.engine(script)
    engine.on_ready = lambda ready: engine.send(stop)
    assert "exit status 0" in str(await failure_of(engine))


async def test_an_engine_that_hangs_in_its_first_decode_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "PROBE_S", 0.05)
    heard = Heard()
    error = await failure_of(heard.engine(READY + "time.sleep(600)"))
    assert heard.events == ["loaded"]
    assert "SIGKILL" in str(error)
    assert "no first token within 0.05 s: killed" in str(error)


async def test_an_engine_that_waits_for_a_silent_rpc_server_is_killed_and_its_servers_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "STILL_S", 1.0)
    script = READY.replace("send(Ready(256, 8, 256, 9))\ntake()", "send(Loading(0.1))")
    load = attrs.evolve(LOAD, settings=EngineSettings(rpc=["10.0.0.7:50052"]))
    error = await failure_of(Heard().engine(script + "time.sleep(600)", load))
    assert "loading stood still for 1 s" in str(error)
    assert "(10.0.0.7:50052)" in str(error)
    assert error.kind == "unresponsive"


async def test_an_engine_that_loads_slowly_over_rpc_servers_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "STILL_S", 2.0)
    slowly = "for part in range(12): send(Loading(part / 12)); time.sleep(0.25)\n"
    script = READY.replace("send(Ready", slowly + "send(Ready")
    load = attrs.evolve(LOAD, settings=EngineSettings(rpc=["10.0.0.7:50052"]))
    heard = Heard()
    await failure_of(heard.engine(script + PROVED, load))
    assert heard.events == ["loaded", "ready"]


async def test_an_engine_that_computes_nonsense_is_refused_with_the_reason() -> None:
    heard = Heard()
    nonsense = PROVED.replace("-0.5", "float('nan')")
    error = await failure_of(heard.engine(READY + nonsense + "take()"))
    assert isinstance(error, LoadFailedError)
    assert error.stage == "probe"
    assert error.reason == "the engine is not fit to serve: its logits are not finite"
    assert heard.events == ["loaded"]


async def test_a_process_that_cannot_be_started_is_an_error_of_the_engine() -> None:
    engine = Heard().engine("")
    engine.command = ["/nothing/is/here"]
    error = await failure_of(engine)
    assert str(error) == "the engine cannot be started: No such file or directory"


async def test_nor_does_a_preparation_that_cannot_be_started_end_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuses(*_: object, **__: object) -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(preparation_server.trio.lowlevel, "open_process", refuses)
    state = AgentDesiredState(
        chat_template_override=None,
        inference_parameters=InferenceParameters(),
        model=NoModel(),
        multimodal_projection=NoModel(),
    )
    source = LanguageSource(
        paths=(str(Path("/m.gguf")),), desired=state, markers=None, trusts_messages=False
    )
    server = PreparationServer(source, lambda server, facts: None)
    words = "the preparation server cannot be started: Resource temporarily unavailable"
    with pytest.raises(PreparationError, match=words):
        await server.run()


@attrs.define(eq=False)
class Lives:
    """A keeper of engines that each end as the script has it."""

    scripts: Sequence[str]
    command: Sequence[str] = ()
    crashes: list[str] = attrs.field(factory=list)
    log: list[str] = attrs.field(factory=list)
    keeper: EngineKeeper = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.keeper = EngineKeeper(
            LOAD,
            self.supervise,
            on_up=lambda engine, ready: self.log.append("up"),
            on_down=lambda engine, reason, suspects: self.log.append("down"),
            on_crash=lambda crash: None,
            on_progress=lambda progress: None,
            on_step=lambda step: None,
            on_stats=lambda stats: None,
            on_begin=lambda engine: self.log.append("begins"),
            on_end=lambda engine: self.log.append("ends"),
            is_beside=True,
        )

    async def supervise(
        self, live: Callable[[], Awaitable[None]], on_crash: Callable[[BaseException], None]
    ) -> None:
        for script in self.scripts:
            self.command = [sys.executable, "-c", script]
            try:
                await live()
            except* EngineError as group:
                self.crashes.append(str(next(leaves(group))))
            else:
                return


@pytest.mark.parametrize(
    ("scripts", "log", "outcome"),
    [
        (["raise SystemExit(3)"], ["begins", "ends"], LoadFailedError),
        ([READY + "raise SystemExit(3)"], ["begins", "ends"], LoadFailedError),
        (
            [READY + PROVED, READY + "raise SystemExit(3)"],
            ["begins", "up", "ends", "down", "begins", "ends"],
            Ready,
        ),
    ],
)
async def test_only_an_engine_that_was_up_once_is_started_again(
    scripts: Sequence[str],
    log: Sequence[str],
    outcome: type[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(scripts)
    giving_way: list[bool] = []

    def engine(*arguments: object, gives_way: bool) -> EngineProcess:
        giving_way.append(gives_way)
        return EngineProcess(*arguments, command=lives.command)  # type: ignore[arg-type]

    monkeypatch.setattr(engine_keeper, "EngineProcess", engine)
    with trio.fail_after(30):
        await lives.keeper.run()
    assert lives.log == list(log)
    assert giving_way == [True, False][: len(scripts)], "nothing answers beside the second life"
    first = lives.keeper.first_start.value
    assert isinstance(first, outcome)
    if isinstance(first, LoadFailedError):
        assert first.stage == "crash"
        assert lives.crashes == []
    else:
        assert len(lives.crashes) == 2
        assert lives.keeper.load_s is not None
