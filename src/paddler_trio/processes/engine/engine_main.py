"""The engine process: loads a model, then decodes until the agent closes the pipe.

Frames come in on standard input and go out on what was standard output; whatever a library
prints goes to standard error, where the agent picks it up as log lines. Three threads: the first
decodes, one reads the pipe and prepares requests, one writes what passes produced. Others embed and
look at images, if that is wanted. One more loads, at low priority, where another engine of the
agent answers meanwhile.
When the pipe closes, the agent is gone or ends this engine: the process exits at once, whatever it
is computing. Every thread notes the requests it works for in a file, so that the agent knows which
may be the cause when the process dies.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import sys
import threading
import time
import traceback
from functools import partial
from queue import SimpleQueue
from typing import Final, NoReturn

import attrs

from paddler_trio import __version__
from paddler_trio.errors import EngineError, WireError
from paddler_trio.processes.engine.admitted import Admitted, admit
from paddler_trio.processes.engine.decode_loop import (
    ISOLATED_TOKENS,
    Command,
    DecodeLoop,
    streams_for,
)
from paddler_trio.processes.engine.llama.context_shape import ENCODER_ONLY, ContextShape
from paddler_trio.processes.engine.llama.draft_model import DraftModel
from paddler_trio.processes.engine.llama.embedder import Embedder
from paddler_trio.processes.engine.llama.embedding_context import EmbeddingContext
from paddler_trio.processes.engine.llama.llama import Llama
from paddler_trio.processes.engine.llama.projector import Projector
from paddler_trio.processes.engine.llama.vision import ImageCache, Vision
from paddler_trio.processes.engine.memory.host_memory import HostMemory
from paddler_trio.processes.engine.memory.memory_breakdown import devices
from paddler_trio.processes.engine.memory.memory_use import MemoryBefore, memory_before, memory_use
from paddler_trio.processes.engine.pipe import Outbox, Pipe
from paddler_trio.processes.engine.rpc.rpc_devices import first_gpu_is_lent
from paddler_trio.processes.engine.sampling.sampling_pool import SamplingPool
from paddler_trio.processes.engine.stats import Counters
from paddler_trio.processes.engine.stored_prefixes import StoredPrefixes
from paddler_trio.scheduler.batching.prefill_controller import PrefillController
from paddler_trio.scheduler.batching.prefix_store import PrefixStore
from paddler_trio.scheduler.batching.thread_count import ThreadCount
from paddler_trio.system.heap import freeze_heap
from paddler_trio.system.llama_library import lib
from paddler_trio.system.thread_priority import run_loading
from paddler_trio.wire.engine.crash_record import RECORD_BYTES, Activity, CrashRecord
from paddler_trio.wire.engine.engine_pipe import (
    Embedded,
    EmbeddingStep,
    EmbedDocuments,
    Ending,
    LoadFailed,
    Loading,
    LoadModel,
    Ping,
    Pong,
    Ready,
    StartSequence,
    Step,
    StopEmbedding,
    StopSequence,
)
from paddler_trio.wire.engine.media import NO_SENSES
from paddler_trio.wire.engine.memory_need import MemoryUse

_PROGRESS_STEP = 0.02
_PROGRESS_INTERVAL_S = 10.0
"""The interval at the latest, where tensors take long: the agent tells by it whether loading stands
still."""
_LONG_ADMISSION_S = 0.05
"""Samplers with many sequence breakers look at each text of the vocabulary for each of them."""
_CANNOT_SEE = "the model was loaded without a multimodal projection: it neither sees nor hears"


_LOADED: Final[list[Llama]] = []
"""The one that is loaded, once it is."""


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: object) -> None:
    """Write llama.cpp's log, each line marked with its level; the agent turns them into records."""
    if not any(llama.hides(level) for llama in _LOADED):
        os.write(2, b"%d\t%s" % (level, text))


@attrs.frozen(eq=False)
class _Loaded:
    """All that is loaded.

    ``embedding_problem`` and ``projection_problem`` say why there is none, where one is wanted.
    """

    llama: Llama
    shape: ContextShape
    draft_model: DraftModel | None
    embedding: EmbeddingContext | None
    embedding_problem: str
    projector: Projector | None
    projection_problem: str
    memory: MemoryUse | None


@attrs.frozen(eq=False)
class _Encoder:
    """A model that can only embed, or shall do nothing else."""

    llama: Llama
    embedding: EmbeddingContext
    memory: MemoryUse | None


def run_engine(record_fd: int | None, *, gives_way: bool) -> None:
    """Load what the first frame names, then decode until the agent closes the pipe.

    Args:
      record_fd: of the file that the agent reads after a crash; None if nobody will.
      gives_way: load at a low priority.
    """
    writer_fd = os.dup(1)
    os.dup2(2, 1)
    lib.llama_log_set(_log, None)
    pipe = Pipe(sys.stdin.buffer, writer_fd)
    record = _open_record(record_fd)
    load = pipe.receive()
    if load is None:
        return
    if not isinstance(load, LoadModel):
        raise WireError(f"the first frame is a {type(load).__name__}, not a LoadModel")
    if load.package_version != __version__:
        pipe.send(LoadFailed("model", f"the agent is {load.package_version}, not {__version__}"))
        return
    load_all = partial(_load_all, pipe, load, gives_way=gives_way)
    loaded = run_loading(load_all, gives_way=gives_way)
    match loaded:
        case LoadFailed():
            pipe.send(loaded)
        case _Encoder():
            _only_embed(pipe, load, loaded, record)
        case _Loaded():
            _generate(pipe, load, loaded, record)


def _load_all(pipe: Pipe, load: LoadModel, *, gives_way: bool) -> _Loaded | _Encoder | LoadFailed:
    """Load everything that takes long, until the first decode is over."""
    before = memory_before(n_gpu_layers=load.n_gpu_layers)
    try:
        llama = _load_model(pipe, load)
    except EngineError as error:
        return LoadFailed("model", str(error))
    _LOADED.append(llama)
    embedding, problem = _open_embedding(llama, load)
    if embedding is None and not llama.can_generate:
        knows_no_chat = not load.embeddings and not llama.has_chat_template
        return LoadFailed("encoder" if knows_no_chat else "model", problem or ENCODER_ONLY)
    if embedding is not None and not (llama.can_generate and embedding.remembers):
        memory = _memory_use(llama, embedding, None, before, generates=False)
        return _Encoder(llama, embedding, memory)
    projector, projection_problem = _open_projector(llama, load)
    try:
        shape = llama.open_context(
            slots=load.slots,
            context_size=load.context_size,
            n_batch=load.n_batch,
            k_cache_dtype=load.k_cache_dtype,
            v_cache_dtype=load.v_cache_dtype,
            threads=load.threads,
            settings=load.settings,
            adapters=load.adapters,
            whole_images=projector is not None and projector.whole_images,
            attends_ahead=projector is not None and projector.attends_ahead,
        )
        if gives_way:  # else its first decode, which is proved, touches the weights as well
            llama.warm_up()
        llama.measure_switch()
        _ = llama.grammar_tokenizer  # or the first request with a grammar would wait for it
        draft_model = None
        if load.settings.draft_model is not None:
            draft_model = DraftModel.load(load.settings.draft_model, load, shape, llama)
    except EngineError as error:
        return LoadFailed("context", str(error))
    return _Loaded(
        llama,
        shape,
        draft_model,
        embedding,
        problem,
        projector,
        projection_problem,
        _memory_use(llama, embedding, draft_model, before, generates=True),
    )


def _generate(pipe: Pipe, load: LoadModel, loaded: _Loaded, record: CrashRecord) -> None:
    """Run an engine that answers, and may embed and see as well."""
    llama, shape = loaded.llama, loaded.shape
    commands: SimpleQueue[Command] = SimpleQueue()
    settings = load.settings
    outbox = Outbox(
        pipe.send,
        settings.stream_interval_ms / 1000,
        most_held=(ISOLATED_TOKENS - 1) // (1 + settings.max_drafts),
    )
    counters = Counters(outbox.put)
    counters.now.threads = load.threads
    prefill_controller = PrefillController(settings.target_pass_ms)
    memory = HostMemory(settings.prefix_store_bytes)
    loop = DecodeLoop(
        llama,
        shape,
        streams_for(llama, shape, load.slots, has_store=settings.prefix_store_bytes > 0),
        prefill_controller,
        StoredPrefixes(
            llama, memory, PrefixStore(memory.num_bytes, shape.rules), prefill_controller
        ),
        commands,
        outbox.put,
        counters,
        SamplingPool(load.threads, llama.n_vocab, record),
        settings.max_drafts,
        loaded.draft_model,
        _thread_count(load),
        record.cells(Activity.DECODING, threading.get_ident()),
        record.cells(Activity.SAMPLING, threading.get_ident()),
    )
    embedder: Embedder | None = None
    if loaded.embedding is not None:
        embedder = Embedder(
            loaded.embedding,
            llama.n_vocab,
            _thread_count(load),
            lambda: not loop.streams.is_idle,
            pipe.send,
            counters,
            record,
        )
        embedder.start(on_crash=partial(_give_up, record))
    vision: Vision[Admitted] | None = None
    if loaded.projector is not None:
        vision = Vision(
            loaded.projector,
            shape.cells,
            shape.n_batch,
            ImageCache(settings.image_cache_bytes),
            partial(admit, llama, shape),
            commands.put,
            record,
            _discard,
        )
        vision.start(on_crash=partial(_give_up, record))
    _start_reading(pipe, llama, record, loop, embedder, vision)
    pipe.send(
        Ready(
            shape.cells,
            shape.n_batch,
            shape.n_ctx_train,
            shape.n_vocab,
            embedding=None if loaded.embedding is None else loaded.embedding.shape,
            embedding_problem=loaded.embedding_problem,
            senses=NO_SENSES if vision is None else vision.projector.senses(shape.cells),
            projection_problem=loaded.projection_problem,
            memory=loaded.memory,
        )
    )
    outbox.start(on_crash=partial(_give_up, record))
    memory.start(on_crash=partial(_give_up, record))
    try:
        loop.run_forever()
    except Exception:
        record.failed(threading.get_ident())
        raise


def _thread_count(load: LoadModel) -> ThreadCount:
    """Return the thread count of the passes of a context. A thread that waits for a GPU does not
    run either, so with one in the machine none gives way."""
    gives_way = all(device.kind in ("cpu", "accel") for device in devices())
    return ThreadCount(load.threads, least=1 if gives_way else load.threads)


def _open_record(descriptor: int | None) -> CrashRecord:
    if descriptor is None:
        return CrashRecord.unread()
    record = CrashRecord(memoryview(mmap.mmap(descriptor, RECORD_BYTES)))
    os.lseek(descriptor, RECORD_BYTES, os.SEEK_SET)
    faulthandler.enable(descriptor)
    return record


def _give_up(record: CrashRecord) -> NoReturn:
    """End the process: this thread failed, and the engine cannot work without it."""
    record.failed(threading.get_ident())
    os._exit(1)


def _load_model(pipe: Pipe, load: LoadModel) -> Llama:
    reported, reported_s = 0.0, time.monotonic()

    def progress(fraction: float) -> None:
        nonlocal reported, reported_s
        now_s = time.monotonic()
        if fraction - reported >= _PROGRESS_STEP or now_s - reported_s >= _PROGRESS_INTERVAL_S:
            reported, reported_s = fraction, now_s
            pipe.send(Loading(fraction))

    return Llama.load(
        load.model_path,
        n_gpu_layers=load.n_gpu_layers,
        progress=progress,
        settings=load.settings,
    )


def _open_embedding(llama: Llama, load: LoadModel) -> tuple[EmbeddingContext | None, str]:
    """Return the second context, if it is wanted and can be; else None and why not."""
    if not load.embeddings:
        return None, ""
    try:
        context = EmbeddingContext.open(
            llama,
            pooling_type=load.pooling_type,
            n_batch=load.n_batch,
            threads=load.threads,
            settings=load.settings,
        )
    except EngineError as error:
        return None, str(error)
    return context, ""


def _open_projector(llama: Llama, load: LoadModel) -> tuple[Projector | None, str]:
    """Return what sees or hears, if that is wanted and can be; else None and why not."""
    if load.projection_path is None:
        return None, ""
    try:
        projector = Projector.load(
            load.projection_path,
            llama,
            threads=max(1, load.threads // 2),  # generation keeps the others
            use_gpu=load.n_gpu_layers != 0 and not first_gpu_is_lent(),
        )
    except EngineError as error:
        return None, str(error)
    return projector, ""


def _memory_use(
    llama: Llama,
    embedding: EmbeddingContext | None,
    draft: DraftModel | None,
    before: MemoryBefore,
    *,
    generates: bool,
) -> MemoryUse | None:
    """Return what was allocated; None, and a warning, where llama.cpp does not count: it serves
    anyway."""
    try:
        return memory_use(llama, embedding, draft, before, generates=generates)
    except EngineError as error:
        os.write(2, f"3\tthe memory of this engine is not known: {error}\n".encode())
        return None


def _only_embed(pipe: Pipe, load: LoadModel, loaded: _Encoder, record: CrashRecord) -> NoReturn:
    """Run an engine whose model is an encoder."""
    llama, context = loaded.llama, loaded.embedding
    counters = Counters(pipe.send)
    embedder = Embedder(
        context, llama.n_vocab, _thread_count(load), lambda: False, pipe.send, counters, record
    )
    _start_reading(pipe, llama, record, None, embedder)
    pipe.send(
        Ready(
            cells=0,
            n_batch=context.shape.max_tokens,
            n_ctx_train=llama.n_ctx_train,
            n_vocab=llama.n_vocab,
            can_generate=False,
            embedding=context.shape,
            memory=loaded.memory,
        )
    )
    try:
        embedder.run_forever()
    except Exception:
        record.failed(threading.get_ident())
        raise


def _start_reading(
    pipe: Pipe,
    llama: Llama,
    record: CrashRecord,
    loop: DecodeLoop | None,
    embedder: Embedder | None,
    vision: Vision[Admitted] | None = None,
) -> None:
    """Start the reader, since all is loaded: from here on, garbage collection must not stop the
    computing threads."""
    freeze_heap()
    threading.Thread(
        target=_read_requests, args=(pipe, llama, record, loop, embedder, vision), daemon=True
    ).start()


def _discard(admitted: Admitted) -> None:
    admitted.sampler.close()


def _read_requests(
    pipe: Pipe,
    llama: Llama,
    record: CrashRecord,
    loop: DecodeLoop | None,
    embedder: Embedder | None,
    vision: Vision[Admitted] | None,
) -> None:
    """Hand every frame to the loop it is for; end the process when there are no more.

    The process also ends if this thread fails: an engine that cannot be stopped is worse than one
    that is restarted.
    """
    status = 1
    doing = record.cells(Activity.ADMITTING, threading.get_ident())
    try:
        while (frame := pipe.receive()) is not None:
            match frame:
                case StartSequence(key, tokens):
                    if loop is None:
                        ending = Ending(key, "refused", len(tokens), 0, ENCODER_ONLY)
                        pipe.send(Step([], [ending]))
                    elif frame.media and vision is None:
                        loop.commands.put(Ending(key, "cannot_see", 0, 0, _CANNOT_SEE))
                    elif frame.media and vision is not None:
                        vision.take(frame)
                    else:
                        doing.begin(key)
                        began_s = time.monotonic()
                        loop.commands.put(admit(llama, loop.shape, frame))
                        doing.end()
                        if time.monotonic() - began_s > _LONG_ADMISSION_S:
                            pipe.send(Pong())  # a ping may wait behind many of these
                case StopSequence():
                    if vision is not None:
                        vision.stop(frame.key)
                    if loop is not None:
                        loop.commands.put(frame)
                        loop.hurry(frame.key)
                case EmbedDocuments(key, documents):
                    if embedder is None:
                        problem = (
                            "this engine was started without embeddings: set enable_embeddings"
                        )
                        pipe.send(
                            EmbeddingStep(
                                [Embedded(key, i, b"", problem) for i in range(len(documents))]
                            )
                        )
                    else:
                        embedder.commands.put(frame)
                case StopEmbedding():
                    if embedder is not None:
                        embedder.commands.put(frame)
                case Ping():
                    pipe.send(Pong())
                case LoadModel():
                    raise WireError("a second LoadModel frame")
        status = 0
    finally:
        if status:
            record.failed(threading.get_ident())
            traceback.print_exc()
        os._exit(status)
