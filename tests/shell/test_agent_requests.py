"""The requests of an agent between its link and its engine, which are both doubles."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import attrs
import pytest
import structlog
import trio
import trio.testing

from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.model.model_server import ModelServer
from paddler_trio.agent.model.serving import Uses
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.language.answers.output_processor import OutputProcessor, RawResult
from paddler_trio.processes.preparation.preparation_messages import Job, PreparedGeneration
from paddler_trio.wire.engine.engine_pipe import Logprobs, SampledToken, Step, StopSequence
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.request_frame import RequestFrame

FRAME = RequestFrame("r1", "generation", "Generate", "{}", is_paddlers=False)


@attrs.define(eq=False)
class Link:
    """What the balancer was sent."""

    endings: list[RawResult | str] = attrs.field(factory=list)
    speaks_trio: bool = True

    def results(
        self,
        wire_id: str,
        tokens: list[int],
        results: list[RawResult],
        prompt: PromptStages | None = None,
        preemptions: int = 0,
    ) -> None:
        self.endings += results

    def acknowledge(self, wire_id: str, model: str | None = None) -> None:
        pass

    def hand_back(self, wire_id: str, reason: str, *, suspects: int | None) -> None:
        self.endings.append("handed back")

    async def sent(self) -> None:
        pass

    def flush(self) -> None:
        pass


class Begun:
    """The output of an answer, whose reader has a defect."""

    is_complete = False
    num_sampled = 0

    def take(self, text: bytes, *, ends_turn: bool, logprobs: Logprobs | None) -> list[RawResult]:
        if text == b"bad":
            raise ZeroDivisionError
        return [{"ContentToken": text.decode()}]


@attrs.define(eq=False)
class Engine:
    """Knows which sequences it was given that nobody has stopped."""

    running: int = 0
    ready: object = None

    def __attrs_post_init__(self) -> None:
        self.ready = object()

    def send_encoded(self, frame: bytes) -> None:
        self.running += 1

    def send(self, frame: StopSequence) -> None:
        self.running -= 1


@attrs.define(eq=False)
class Preparing:
    """Its last read finds the bytes at once: no cancellation ends that any more."""

    meanwhile: Callable[[], None] | None = None
    parameters: InferenceParameters = attrs.field(factory=InferenceParameters)

    async def prepare(self, job: Job, *, client: str) -> PreparedGeneration:
        await trio.lowlevel.checkpoint()
        assert self.meanwhile is not None
        self.meanwhile()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return PreparedGeneration(b"start", cast("OutputProcessor", Begun()), 3)


class Named:
    fingerprint = "a model"


@attrs.define(eq=False)
class Serving:
    preparation: Preparing = attrs.field(factory=Preparing)
    engine: Engine = attrs.field(factory=Engine)
    in_force: Named = attrs.field(factory=Named)
    uses: Uses = attrs.field(factory=Uses)

    def may_answer(self, frame: RequestFrame) -> bool:
        return True


@attrs.define(eq=False)
class Models:
    serving: Serving = attrs.field(factory=Serving)


@pytest.mark.parametrize("link_ends", [False, True])
async def test_what_was_stopped_before_it_began_is_not_given_to_the_engine(
    *, link_ends: bool
) -> None:
    requests, models, link = AgentRequests(AgentStatus(4)), Models(), Link()
    serving = models.serving

    def stop() -> None:
        if link_ends:
            requests.stop_all_of(link)
        else:
            requests.stop(FRAME.id, link)

    serving.preparation.meanwhile = stop
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            requests.open(nursery, cast("ModelServer", models))
            requests.start(FRAME, link)
    assert serving.engine.running == 0, "it would be computed to its end for nobody"
    assert serving.uses.count == 0
    assert len(link.endings) == (0 if link_ends else 1)
    assert "handed back" not in link.endings


async def test_an_answer_that_cannot_be_read_ends_alone() -> None:
    requests, models, link = AgentRequests(AgentStatus(4)), Models(), Link()
    serving = models.serving
    serving.preparation.meanwhile = lambda: None
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            requests.open(nursery, cast("ModelServer", models))
            for name in ("r1", "r2"):
                requests.start(attrs.evolve(FRAME, id=name), link)
                await trio.testing.wait_all_tasks_blocked()
            assert serving.engine.running == 2
            with structlog.testing.capture_logs() as records:
                requests.on_step(
                    Step([SampledToken(1, 5, b"bad"), SampledToken(2, 5, b"good")], [])
                )
            await trio.testing.wait_all_tasks_blocked()
            assert serving.engine.running == 1, "its sequence was stopped"
            requests.on_step(Step([SampledToken(1, 6, b"late"), SampledToken(2, 6, b"better")], []))
            requests.stop_all_of(link)
    assert serving.uses.count == 0
    said = records[0]
    assert (said["event"], said["request"]) == ("an answer cannot be read", "r1")
    assert said["exc_info"]
    (failed,) = (each for each in link.endings if "SamplerError" in each)
    link.endings.remove(failed)
    assert link.endings == [{"ContentToken": "good"}, {"ContentToken": "better"}]
