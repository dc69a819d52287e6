"""A link that does not read keeps one request's documents waiting, not its vectors in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np
import pytest
import trio

from encoder_models import write_bert
from paddler_trio.agent.children.engine_crash import Suspects
from paddler_trio.agent.children.engine_process import EngineProcess
from paddler_trio.agent.children.preparation import PreparationTurns
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.model.serving import Uses
from paddler_trio.agent.requests.embedding_requests import PORTION_TOKENS, EmbeddingRequests
from paddler_trio.errors import EngineError
from paddler_trio.language.model_language import Language
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.preparation.jobs import prepare
from paddler_trio.processes.preparation.preparation_messages import Job, Prepared
from paddler_trio.wire.engine.engine_pipe import (
    Embedded,
    EmbeddingShape,
    EmbeddingStep,
    EmbedDocuments,
    Ready,
    StopEmbedding,
)
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.request_frame import RequestFrame, read_head
from paddler_trio.wire.trio.trio_link import Start, render_extension
from paddler_trio.wire.trio.work import Embed, TokenInput

NUM_DOCUMENTS = 1000
LENGTH = 40


@attrs.define(eq=False)
class Answering:
    """An engine that computes whatever it is given at once; a vector is the first token."""

    requests: EmbeddingRequests
    nursery: trio.Nursery
    ready: Ready = attrs.field(
        factory=lambda: Ready(0, 64, 64, 17, False, EmbeddingShape(64, 1, "Mean"))
    )
    num_given: int = 0
    keys: list[int] = attrs.field(factory=list)
    stopped: list[int] = attrs.field(factory=list)
    is_gone: bool = False

    def send(self, frame: EmbedDocuments | StopEmbedding) -> None:
        if self.is_gone:
            raise EngineError("the engine is gone")
        if isinstance(frame, StopEmbedding):
            self.stopped.append(frame.key)
            return
        self.keys.append(frame.key)
        self.num_given += len(frame.documents)
        self.nursery.start_soon(self._compute, frame)

    async def _compute(self, frame: EmbedDocuments) -> None:
        for index in reversed(range(len(frame.documents))):
            values = np.frombuffer(frame.documents[index], "<i4")[:1].astype("<f4").tobytes()
            self.requests.on_step(EmbeddingStep([Embedded(frame.key, index, values)]))


@attrs.define(eq=False)
class Link:
    """What was sent, as far as it was let through."""

    frames: list[Any] = attrs.field(factory=list)
    handed_back: list[int | None] = attrs.field(factory=list)
    room: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(0))
    speaks_trio: bool = True

    async def send_large(self, frame: bytes) -> None:
        await self.room.acquire()
        self.frames.append(json.loads(frame)["Response"]["response"]["Embedding"])

    def respond(self, wire_id: str, response: object) -> None:
        raise AssertionError(f"an answer that overtakes: {response}")

    def acknowledge(self, wire_id: str) -> None:
        pass

    async def sent(self) -> None:
        await trio.lowlevel.checkpoint()

    def hand_back(self, wire_id: str, reason: str, *, suspects: int | None) -> None:
        self.handed_back.append(suspects)

    def read(self, count: int) -> None:
        for _ in range(count):
            self.room.release()


@attrs.define(eq=False)
class Speaking:
    """Of a language what embedding asks for."""

    vocabulary: Vocabulary
    parameters: InferenceParameters


@attrs.define(eq=False)
class Prepares:
    """Does jobs at once and in this process."""

    language: Speaking

    @property
    def parameters(self) -> InferenceParameters:
        return self.language.parameters

    async def prepare(self, job: Job, *, client: str) -> Prepared:
        await trio.lowlevel.checkpoint()
        return prepare(job, cast("Language", self.language))


@attrs.define(eq=False)
class ServedModel:
    preparation: Prepares
    engine: Answering
    uses: Uses = attrs.field(factory=Uses)

    def may_answer(self, frame: RequestFrame) -> bool:
        return not frame.bound


@attrs.define(eq=False)
class Models:
    serving: ServedModel


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path: Path = write_bert(tmp_path_factory.mktemp("models") / "encoder.gguf")
    vocabulary = Vocabulary.load(path)
    yield vocabulary
    vocabulary.close()


@attrs.define(eq=False)
class Agent:
    requests: EmbeddingRequests
    engine: Answering
    link: Link

    @classmethod
    def of(cls, nursery: trio.Nursery, vocabulary: Vocabulary) -> Agent:
        requests = EmbeddingRequests(AgentStatus(4), PreparationTurns())
        engine = Answering(requests, nursery)
        parameters = InferenceParameters(enable_embeddings=True)
        models = Models(ServedModel(Prepares(Speaking(vocabulary, parameters)), engine))
        requests.open(nursery, cast("ModelServer", models))
        return cls(requests, engine, Link())

    def ask(self) -> None:
        inputs = [TokenInput(tokens=(5 + i % 12,) * LENGTH) for i in range(NUM_DOCUMENTS)]
        work = Embed(inputs=tuple(inputs), normalize="none")
        text = render_extension(Start("e1", work, 0, ())).decode()
        frame = read_head(text, speaks_trio=True)
        assert frame is not None
        self.requests.start(frame, self.link)

    async def until_sent(self, count: int) -> None:
        while len(self.link.frames) < count:
            await trio.lowlevel.checkpoint()


WINDOW = 2 * PORTION_TOKENS // LENGTH


async def test_the_engine_is_given_more_only_when_vectors_were_sent(
    vocabulary: Vocabulary,
) -> None:
    async with trio.open_nursery() as nursery:
        agent = Agent.of(nursery, vocabulary)
        agent.ask()
        agent.link.read(1)
        await agent.until_sent(1)
        for num_read in (1, 150, 400):
            agent.link.read(num_read - len(agent.link.frames))
            await agent.until_sent(num_read)
            assert agent.engine.num_given <= num_read + 2 * WINDOW
        agent.link.read(NUM_DOCUMENTS + 2)
    *results, usage, last = agent.link.frames
    assert [each["Embedding"]["source_document_id"] for each in results] == [
        str(i) for i in range(NUM_DOCUMENTS)
    ]
    assert [each["Embedding"]["embedding"] for each in results] == [
        [5 + i % 12] for i in range(NUM_DOCUMENTS)
    ]
    assert usage == {"Usage": {"prompt_tokens": NUM_DOCUMENTS * LENGTH}}
    assert last == "Done"
    assert agent.engine.num_given == NUM_DOCUMENTS
    assert not agent.engine.stopped
    assert not agent.requests._by_key
    assert not agent.requests._running


async def test_a_stop_takes_back_what_the_engine_has(vocabulary: Vocabulary) -> None:
    async with trio.open_nursery() as nursery:
        agent = Agent.of(nursery, vocabulary)
        agent.ask()
        agent.link.read(10)
        await agent.until_sent(10)
        agent.requests.stop("e1", agent.link)
        agent.link.read(2)
    assert agent.link.frames[-1] == "Done"
    assert len(agent.link.frames) == 12
    assert agent.engine.num_given <= 10 + 2 * WINDOW
    assert set(agent.engine.stopped) <= set(agent.engine.keys)
    assert not agent.requests._by_key


async def test_an_engine_that_dies_while_the_link_waits_is_told_as_such(
    vocabulary: Vocabulary,
) -> None:
    async with trio.open_nursery() as nursery:
        agent = Agent.of(nursery, vocabulary)
        agent.ask()
        agent.link.read(10)
        await agent.until_sent(10)
        agent.engine.is_gone = True
        agent.requests.on_engine_gone(
            cast("EngineProcess", agent.engine), "it crashed", Suspects(embeddings={10**6: 1})
        )
        agent.link.read(NUM_DOCUMENTS)
    assert agent.link.handed_back == [0], "it died over another one"
    assert 10 <= len(agent.link.frames) <= 10 + 2 * WINDOW
    assert not agent.requests._by_key
