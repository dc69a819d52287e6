"""The engine as a child process: started, fed, listened to, and ended; never trusted.

Owner: one task, :meth:`EngineProcess.run`. When it ends, for whatever reason, the process is
gone and every wait for a sequence has ended. The engine crashing is an EngineError
whose text carries the last lines it wrote, so that the operator sees the cause and not only -6.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from paddler_trio.agent.children.engine_crash import (
    EngineProbe,
    LoadFailedError,
    Suspects,
    crash_record_file,
    how_it_ended,
    suspects_in,
)
from paddler_trio.agent.children.thread_waiting import thread_waiting
from paddler_trio.errors import EngineError
from paddler_trio.system.logs.log_ring import ENGINE_LINES
from paddler_trio.system.process_end import end_process
from paddler_trio.system.ready_sockets import read_while
from paddler_trio.system.thread_priority import GIVE_WAY
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    EmbedDocuments,
    EngineStats,
    FromEngine,
    LoadFailed,
    Loading,
    LoadModel,
    Ping,
    Pong,
    Ready,
    Step,
    StopEmbedding,
    StopSequence,
)
from paddler_trio.wire.engine.pipe_codec import (
    LENGTH_BYTES,
    body_length,
    decode_from_engine,
    encode,
    is_whole,
)

log = structlog.get_logger("engine")

TO_ENGINE_FRAMES = 4096
"""Two frames a request; the engine reads them in a thread of its own, so this never fills unless
that thread hangs in one grammar, and then requests are refused."""
GOODBYE_S = 2.0
PING_S = 2.0
HUNG_AFTER_S = 15.0
"""An engine answers pings in a thread of its own, however long a pass takes: one that does not is
stopped, swapped out or dead-locked, and its answers go on elsewhere sooner than it comes back."""
STOP_S = 300.0
"""The time after a stop for any pass to end: they take seconds, the first one of a huge model on a
slow machine minutes. The thread that answers pings sees nothing of one that never ends, since a
lent device stands still, or a GPU hangs."""
EMBEDDING_STOP_S = 1800.0
"""The time for documents: a pass has a whole one, and beside generation few cores."""
STILL_S = 600.0
"""While a model is loaded over RPC servers: without a word of llama.cpp's and without progress, of
which it tells every few seconds as long as tensors go out. It waits without a limit for a server
that has fallen silent."""
PROBE_S = 60.0
"""The time for the first decode, on whatever machine; an engine that takes longer serves no one."""
_READ_BYTES = 65536
_CAUSE_LINES = 12
_LEVELS = {"2": "info", "3": "warning", "4": "error"}
"""The levels of llama.cpp's lines that are kept, by its numbers; the others are for those who
debug, and a load writes hundreds of them."""
_ENGINE_COMMAND = (sys.executable, "-P", "-m", "paddler_trio.processes.engine")


@attrs.define(eq=False)
class EngineProcess:
    """One life of an engine.

    Args:
      load: what to load.
      on_progress: gets the part of the weights that is in memory, 0..1.
      on_ready: called once, when the engine is proved and sequences may start.
      on_step: gets every pass from then on, in order; synchronous, must not raise.
      on_stats: gets the engine's counters now and then.
      on_loaded: called once before that, when the proof begins.
      gives_way: another engine answers meanwhile: load at a low priority.
    """

    load: LoadModel
    on_progress: Callable[[float], None]
    on_ready: Callable[[Ready], None]
    on_step: Callable[[Step | EmbeddingStep], None]
    on_stats: Callable[[EngineStats], None]
    on_loaded: Callable[[], None] = lambda: None
    gives_way: bool = False
    command: Sequence[str] = _ENGINE_COMMAND
    _frames: trio.MemorySendChannel[bytes] = attrs.field(init=False)
    _outgoing: trio.MemoryReceiveChannel[bytes] = attrs.field(init=False)
    ready: Ready | None = attrs.field(default=None, init=False)
    """The engine's greeting; None before it is loaded."""
    pid: int | None = attrs.field(default=None, init=False)
    suspects: Suspects = attrs.field(factory=Suspects, init=False)
    """Whom it was working for when it died."""
    _is_loaded: trio.Event = attrs.field(factory=trio.Event, init=False)
    _probe: EngineProbe | None = attrs.field(default=None, init=False)
    """The probe, as long as the engine is being proved."""
    _is_proved: trio.Event = attrs.field(factory=trio.Event, init=False)
    _pong: trio.Event = attrs.field(factory=trio.Event, init=False)
    _moved_s: float = attrs.field(default=-math.inf, init=False)
    """The time at which it last told something."""
    _stop_asked_s: float = attrs.field(default=math.inf, init=False)
    """The time at which a sequence was stopped after the last pass; infinite if none was."""
    _embedding_stop_asked_s: float = attrs.field(default=math.inf, init=False)
    """The time at which documents were stopped after the last pass of documents; infinite if none
    were."""
    _was_hung: bool = attrs.field(default=False, init=False)
    """It was killed because it did not answer."""
    _last_words: deque[str] = attrs.field(factory=lambda: deque(maxlen=_CAUSE_LINES), init=False)

    def __attrs_post_init__(self) -> None:
        self._frames, self._outgoing = trio.open_memory_channel[bytes](TO_ENGINE_FRAMES)

    def send(self, frame: StopSequence | EmbedDocuments | StopEmbedding) -> None:
        """Queue a frame; EngineError if the engine does not take any."""
        self.send_encoded(encode(frame))
        now_s = trio.current_time()
        if isinstance(frame, StopSequence):
            self._stop_asked_s = min(self._stop_asked_s, now_s)
        elif isinstance(frame, StopEmbedding):
            self._embedding_stop_asked_s = min(self._embedding_stop_asked_s, now_s)

    def send_encoded(self, frame: bytes) -> None:
        """Send a whole frame as ``send`` does."""
        try:
            self._frames.send_nowait(frame)
        except trio.WouldBlock as error:
            raise EngineError("the engine does not read its pipe") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise EngineError("the engine is gone") from error

    async def run(self) -> None:
        """Run until cancelled; raise EngineError when the engine fails or dies.

        Cancellation: the pipe is closed, which ends the engine at once; a process that is still
        there after two seconds is killed.
        """
        environment = {
            **thread_waiting(self.load),
            **os.environ,
            "GGML_NO_BACKTRACE": "1",  # on an abort ggml would attach a debugger for seconds
        }
        with contextlib.ExitStack() as stack:
            try:
                record = stack.enter_context(crash_record_file())
                process = await trio.lowlevel.open_process(
                    [*self.command, str(record), *([GIVE_WAY] if self.gives_way else [])],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[record],
                    env=environment,
                    # Ctrl-C is the agent's to handle; the engine ends with it. No session of its
                    # own: Linux schedules sessions as groups, and a light group can wait 100 ms
                    # beside a busy one.
                    process_group=0,
                )
            except OSError as error:  # no further process, or no descriptors
                reason = error.strerror or str(error)
                raise EngineError(f"the engine cannot be started: {reason}") from error
            self.pid = process.pid
            self._note("info", f"starts with {self.load.model_path}")
            try:
                await self._converse(process, record)
            finally:
                self.pid = None
                self._frames.close()
                await end_process(process, name="engine", grace_s=GOODBYE_S)

    async def _converse(self, process: trio.Process, record: int) -> None:
        failure: EngineError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, process, name="engine pipe writer")
            nursery.start_soon(self._log, process, name="engine log")
            nursery.start_soon(self._watch, process, name="engine pings")
            nursery.start_soon(self._watch_probe, process, name="engine probe")
            if self.load.settings.rpc:
                nursery.start_soon(self._watch_loading, process, name="engine loading")
            failure = await self._read(process)
            if failure is None:  # the pipe ended: the exit status is the cause
                status = await process.wait()
                self.suspects = suspects_in(record, status)
                when = "" if self._probe is None else " at its first decode"
                failure = EngineError(
                    f"the engine died{when} ({how_it_ended(status)}); "
                    f"its last words: {self._cause()}",
                    kind=self._kind_of_death(status),
                )
            nursery.cancel_scope.cancel(reason="the engine has ended")
        raise failure

    async def _write(self, process: trio.Process) -> None:
        assert process.stdin is not None
        try:
            await process.stdin.send_all(encode(self.load))
            async for frame in self._outgoing:
                await process.stdin.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it died; the reader sees the end of the pipe and reports it

    async def _read(self, process: trio.Process) -> EngineError | None:
        """Handle frames, each pass in the step in which it is read, until the pipe ends (None) or
        the engine reports that it cannot serve."""
        assert isinstance(process.stdout, trio.lowlevel.FdStream)
        descriptor = process.stdout.fileno()
        begun = bytearray()
        failure: EngineError | None = None

        def read() -> bool:
            nonlocal failure
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return True
            if not begun and is_whole(data):  # nearly always
                failure = self._handle(decode_from_engine(data[LENGTH_BYTES:]))
            else:
                begun.extend(data)
                failure = self._handle_whole(begun)
            return bool(data) and failure is None

        await read_while(descriptor, read)
        return failure

    def _handle_whole(self, begun: bytearray) -> EngineError | None:
        """Handle the whole frames at the beginning, and leave the rest."""
        start = 0
        failure: EngineError | None = None
        while failure is None and len(begun) - start >= LENGTH_BYTES:
            length = body_length(bytes(begun[start : start + LENGTH_BYTES]))
            stop = start + LENGTH_BYTES + length
            if len(begun) < stop:
                break
            failure = self._handle(decode_from_engine(bytes(begun[start + LENGTH_BYTES : stop])))
            start = stop
        del begun[:start]
        return failure

    def _handle(self, frame: FromEngine) -> EngineError | None:
        match frame:
            case Step() | EmbeddingStep():
                if isinstance(frame, Step):
                    self._stop_asked_s = math.inf
                else:
                    self._embedding_stop_asked_s = math.inf
                if self._probe is not None:
                    return self._judge(self._probe, frame)
                self.on_step(frame)
            case EngineStats():
                self.on_stats(frame)
            case Loading(progress):
                self._moved_s = trio.current_time()
                self.on_progress(progress)
            case Ready():
                self.ready = frame
                self._is_loaded.set()
                self._prove(frame)
            case Pong():
                self._pong.set()
            case LoadFailed(stage, reason):
                return LoadFailedError(stage, reason, self._cause())
        return None

    def _prove(self, ready: Ready) -> None:
        """Let the engine compute before anything is sent to it that matters."""
        probe = self._probe = EngineProbe(ready)
        self.on_loaded()
        for frame in probe.frames():
            self._frames.send_nowait(encode(frame))  # there is room: nothing else was sent
        if probe.is_over:
            self._proved(ready)

    def _judge(self, probe: EngineProbe, step: Step | EmbeddingStep) -> EngineError | None:
        probe.take(step)
        if probe.problem is not None:
            return LoadFailedError("probe", f"the engine is not fit to serve: {probe.problem}")
        if probe.is_over:
            self._proved(probe.ready)
        return None

    def _proved(self, ready: Ready) -> None:
        self._probe = None
        self._is_proved.set()
        self.on_ready(ready)

    async def _watch_loading(self, process: trio.Process) -> None:
        """Kill an engine that waits for an RPC server which does not answer any more."""
        self._moved_s = trio.current_time()
        while not self._is_loaded.is_set():
            if trio.current_time() >= self._moved_s + STILL_S:
                servers = ", ".join(self.load.settings.rpc)
                self._last_words.append(
                    f"loading stood still for {STILL_S:g} s, as it does when an RPC server "
                    f"({servers}) falls silent: killed"
                )
                self._was_hung = True
                process.kill()
                return
            with trio.move_on_at(self._moved_s + STILL_S):
                await self._is_loaded.wait()

    async def _watch_probe(self, process: trio.Process) -> None:
        """Kill an engine that hangs in its first decode, as one that answers no pings."""
        await self._is_loaded.wait()
        with trio.move_on_after(PROBE_S) as patience:
            await self._is_proved.wait()
        if patience.cancelled_caught:
            self._last_words.append(f"no first token within {PROBE_S:g} s: killed")
            self._was_hung = True
            process.kill()

    async def _watch(self, process: trio.Process) -> None:
        """Kill an engine that hangs; the reader then sees the end of the pipe and reports it."""
        await self._is_loaded.wait()
        while True:
            with contextlib.suppress(trio.WouldBlock):  # it does not read: no pong will come
                self._frames.send_nowait(encode(Ping()))
            with trio.move_on_after(HUNG_AFTER_S) as patience:
                await self._pong.wait()
            problem = ""
            if patience.cancelled_caught:
                problem = f"no answer to a ping for {HUNG_AFTER_S:g} s"
            elif trio.current_time() > self._stop_asked_s + STOP_S:
                problem = f"no pass ended for {STOP_S:g} s after a stop"
            elif trio.current_time() > self._embedding_stop_asked_s + EMBEDDING_STOP_S:
                problem = f"no pass of documents ended for {EMBEDDING_STOP_S:g} s after a stop"
            if problem:
                self._last_words.append(f"{problem}: killed")
                self._was_hung = True
                process.kill()
                return
            self._pong = trio.Event()
            await trio.sleep(PING_S)

    async def _log(self, process: trio.Process) -> None:
        """Log llama.cpp's output: ``LEVEL<tab>text`` lines, or anything it printed."""
        assert process.stderr is not None
        rest = b""
        async for data in process.stderr:
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_READ_BYTES:]
            for line in lines:
                self._log_line(line.decode(errors="replace"))

    def _log_line(self, line: str) -> None:
        self._moved_s = trio.current_time()
        level, tab, text = line.partition("\t")
        if not tab or not level.isdecimal():
            level, text = "4", line
        if not text.strip(" ."):
            return
        if level in _LEVELS:
            self._note(_LEVELS[level], text)
        match level:
            case "4":
                log.warning("llama.cpp", text=text)
                self._last_words.append(text)
            case "3":
                log.info("llama.cpp", text=text)
                self._last_words.append(text)
            case _:
                log.debug("llama.cpp", text=text)

    def _note(self, level: str, text: str) -> None:
        """Keep a line for operators who read the log of engines from afar."""
        ENGINE_LINES.add(level, f"[{self.pid}] {text}")

    def _kind_of_death(self, status: int) -> str:
        if self._was_hung:
            return "unresponsive"
        return "killed" if status in (-signal.SIGKILL, -signal.SIGTERM) else "crash"

    def _cause(self) -> str:
        return " | ".join(self._last_words) or "nothing"
