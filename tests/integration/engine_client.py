"""An engine process over its pipe, as a test drives it; the vocabulary is the bundled model's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import forked_processes
from forked_processes import ForkedProcess

from paddler_trio import __version__
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import (
    Ending,
    EngineStats,
    FromEngine,
    Grammar,
    Loading,
    LoadModel,
    Pong,
    Progress,
    SampledToken,
    StartSequence,
    Step,
    ToEngine,
)
from paddler_trio.wire.engine.pipe_codec import (
    LENGTH_BYTES,
    body_length,
    decode_from_engine,
    encode,
)
from paddler_trio.wire.engine.sampler_stages import Sampling
from samplings import GREEDY

DICE = attrs.evolve(
    GREEDY,
    temperature=0.9,
    top_k=60,
    top_p=0.95,
    min_p=0.02,
    penalty_last_n=-1,
    penalty_repeat=1.1,
    penalty_presence=0.5,
    seed=77,
)
LOAD = LoadModel(str(BUNDLED_MODEL), 4, 2048, 512, 0, "F16", "F16", 1, __version__)
STORY = (
    "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@attrs.define(eq=False)
class Engine:
    process: subprocess.Popen[bytes] | ForkedProcess
    vocabulary: Vocabulary
    sampled: dict[int, list[int]] = attrs.field(factory=dict)
    reports: dict[int, list[SampledToken]] = attrs.field(factory=dict)
    texts: dict[int, bytes] = attrs.field(factory=dict)
    endings: dict[int, Ending] = attrs.field(factory=dict)
    stats: EngineStats | None = None
    progress: list[Progress] = attrs.field(factory=list)
    preempted: list[int] = attrs.field(factory=list)
    deliveries: list[int] = attrs.field(factory=list)
    """How many tokens came in each step that had any."""

    def send(self, frame: ToEngine) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(frame))
        self.process.stdin.flush()

    def receive(self) -> FromEngine | None:
        """The next frame, but no word that it lives, which it says after a long admission."""
        assert self.process.stdout is not None
        while len(prefix := self.process.stdout.read(LENGTH_BYTES)) == LENGTH_BYTES:
            frame = decode_from_engine(self.process.stdout.read(body_length(prefix)))
            if not isinstance(frame, Pong):
                return frame
        return None

    def load(self, load: LoadModel = LOAD) -> FromEngine | None:
        self.send(load)
        while isinstance(frame := self.receive(), Loading):
            assert 0 <= frame.progress <= 1
        return frame

    def start(
        self,
        key: int,
        prompt: str | list[int],
        *,
        sampling: Sampling = GREEDY,
        grammar: Grammar | None = None,
        max_tokens: int = 40,
        sampled: list[int] | None = None,
        **more: object,
    ) -> None:
        """``more`` are further fields of StartSequence."""
        tokens = prompt if isinstance(prompt, list) else self.tokens(prompt)
        start = StartSequence(key, tokens, sampled or [], max_tokens, sampling, grammar)
        self.send(attrs.evolve(start, **more))

    def tokens(self, prompt: str) -> list[int]:
        return self.vocabulary.tokenize(prompt, add_special=True, parse_special=True)

    def until_ended(self, *keys: int) -> None:
        while not set(keys) <= self.endings.keys():
            frame = self.receive()
            if isinstance(frame, EngineStats):
                self.stats = frame
                continue
            assert isinstance(frame, Step), frame
            self.progress += frame.progress
            self.preempted += frame.preempted
            if frame.sampled:
                self.deliveries.append(len(frame.sampled))
            for token in frame.sampled:
                self.sampled.setdefault(token.key, []).append(token.token)
                self.reports.setdefault(token.key, []).append(token)
                self.texts[token.key] = self.texts.get(token.key, b"") + token.text
            for ending in frame.endings:
                assert ending.key not in self.endings, "an ending came twice"
                self.endings[ending.key] = ending

    def receive_figures(self) -> None:
        """The next ones; an idle engine reports what it has not reported yet."""
        frame = self.receive()
        assert isinstance(frame, EngineStats), frame
        self.stats = frame


@contextmanager
def running(vocabulary: Vocabulary, *, is_command: bool = False) -> Iterator[Engine]:
    """``is_command``: as agents start it, for tests that look at the memory of the process."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    process: subprocess.Popen[bytes] | ForkedProcess
    if is_command:
        process = subprocess.Popen(
            [sys.executable, "-m", "paddler_trio.processes.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    else:
        process = forked_processes.start(
            "paddler_trio.processes.engine",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    with process:
        try:
            yield Engine(process, vocabulary)
        finally:
            process.kill()
