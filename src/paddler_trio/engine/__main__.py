"""Entry of the engine process: ``python -m paddler_trio.engine``, started by an agent only.

Frames come in on standard input and go out on what was standard output; whatever a library
prints goes to standard error, where the agent picks it up as log lines. Two threads: this one
decodes, the other reads the pipe and prepares requests. When the pipe closes, the agent is gone
or wants us gone: the process ends at once, whatever it is computing.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import BinaryIO

import llama_cpp.llama_cpp as lib

from paddler_trio import __version__
from paddler_trio.engine.decode_loop import Command, DecodeLoop, admit
from paddler_trio.engine.llama import ContextShape, Llama
from paddler_trio.errors import EngineError, WireError
from paddler_trio.scheduler.batching.streams import Streams
from paddler_trio.wire.engine_pipe import (
    LENGTH_BYTES,
    FromEngine,
    LoadFailed,
    Loading,
    LoadModel,
    Ping,
    Pong,
    Ready,
    StartSequence,
    StopSequence,
    ToEngine,
    body_length,
    decode_to_engine,
    encode,
)

_PROGRESS_STEP = 0.02


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: object) -> None:
    """llama.cpp's words, each line marked with its level; the agent turns them into records."""
    os.write(2, b"%d\t%s" % (level, text))


class Pipe:
    """Both directions of the pipe to the agent, blocking."""

    def __init__(self, reader: BinaryIO, writer_fd: int) -> None:
        self._reader = reader
        self._writer_fd = writer_fd
        self._writing = threading.Lock()
        """Both threads write: steps are the decoding one's, pongs the reading one's."""

    def receive(self) -> ToEngine | None:
        """The next frame; None when the agent closed the pipe."""
        prefix = self._reader.read(LENGTH_BYTES)
        if len(prefix) < LENGTH_BYTES:
            return None
        body = self._reader.read(length := body_length(prefix))
        return decode_to_engine(body) if len(body) == length else None

    def send(self, frame: FromEngine) -> None:
        data = memoryview(encode(frame))
        with self._writing:
            while data:
                data = data[os.write(self._writer_fd, data) :]


def main() -> None:
    """Load what the first frame names, then decode until the agent closes the pipe."""
    writer_fd = os.dup(1)
    os.dup2(2, 1)
    lib.llama_log_set(_log, None)
    pipe = Pipe(sys.stdin.buffer, writer_fd)
    load = pipe.receive()
    if load is None:
        return
    if not isinstance(load, LoadModel):
        raise WireError(f"the first frame is a {type(load).__name__}, not a LoadModel")
    if load.package_version != __version__:
        pipe.send(LoadFailed("model", f"the agent is {load.package_version}, not {__version__}"))
        return
    try:
        llama = _load_model(pipe, load)
    except EngineError as error:
        pipe.send(LoadFailed("model", str(error)))
        return
    try:
        shape = llama.open_context(
            slots=load.slots,
            context_size=load.context_size,
            n_batch=load.n_batch,
            k_cache_dtype=load.k_cache_dtype,
            v_cache_dtype=load.v_cache_dtype,
            threads=load.threads,
        )
        llama.warm_up()
    except EngineError as error:
        pipe.send(LoadFailed("context", str(error)))
        return
    commands: SimpleQueue[Command] = SimpleQueue()
    threading.Thread(
        target=_read_requests, args=(pipe, llama, shape, commands), daemon=True
    ).start()
    pipe.send(Ready(shape.cells, shape.n_batch, shape.n_ctx_train, shape.n_vocab))
    DecodeLoop(llama, shape, Streams(load.slots, shape.n_batch), commands, pipe.send).run_forever()


def _load_model(pipe: Pipe, load: LoadModel) -> Llama:
    reported = 0.0

    def progress(fraction: float) -> None:
        nonlocal reported
        if fraction - reported >= _PROGRESS_STEP:
            reported = fraction
            pipe.send(Loading(fraction))

    return Llama.load(load.model_path, n_gpu_layers=load.n_gpu_layers, progress=progress)


def _read_requests(
    pipe: Pipe, llama: Llama, shape: ContextShape, commands: SimpleQueue[Command]
) -> None:
    """Hand every frame to the decode loop; end the process when there are no more.

    The process also ends if this thread fails: an engine that cannot be told to stop is worse
    than one that is restarted.
    """
    status = 1
    try:
        while (frame := pipe.receive()) is not None:
            match frame:
                case StartSequence():
                    commands.put(admit(llama, shape, frame))
                case StopSequence():
                    commands.put(frame)
                case Ping():
                    pipe.send(Pong())
                case LoadModel():
                    raise WireError("a second LoadModel frame")
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):  # the agent went away first
        os._exit(1)
    except Exception:  # noqa: BLE001  # Python cannot end while the other thread reads the pipe
        traceback.print_exc()
        os._exit(1)
