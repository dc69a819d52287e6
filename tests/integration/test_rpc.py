"""An engine over devices that an RPC server lends: same words, clear errors, survivable losses."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import numpy as np
import trio
from engine_client import GREEDY, LOAD, STORY, Engine, running
from fleet import Fleet, FleetView, serving
from rpc_client import needs_rpc, rpc_server
from streams import CONVERSATION, Heard, listen, story, until_first_tokens

from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.processes.engine.rpc.rpc_greeting import PROTOCOL
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingStep,
    EmbedDocuments,
    LoadFailed,
    LoadModel,
    Ready,
    Step,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.media import MEDIA_TOKEN, Image
from vision_models import picture, write_projector

pytestmark = needs_rpc

DOCUMENTS = 60
HELLO_BYTES = 1 + 8 + 24
ALL_LAYERS = attrs.evolve(LOAD, n_gpu_layers=-1)


def over(*servers: str) -> EngineSettings:
    return EngineSettings(rpc=list(servers))


def answer(engine: Engine) -> bytes:
    engine.start(1, STORY, max_tokens=24, sampling=attrs.evolve(GREEDY, ignore_eos=True))
    engine.until_ended(1)
    return engine.texts[1]


@contextmanager
def nobody_listens() -> Iterator[str]:
    """An address that refuses connections, and that nobody else can get meanwhile."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@contextmanager
def kept_address() -> Iterator[str]:
    """An address for a server that ends and comes back: nothing else gets it meanwhile. Servers of
    llama.cpp share it with a socket that does not listen."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@contextmanager
def greets_and_no_more() -> Iterator[str]:
    """A peer that answers each greeting and then never says a word."""
    answer = struct.pack("<Q4B24x", 28, *PROTOCOL, 0, 0)
    connections: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                connection, _ = listening.accept()
                connections.append(connection)
                connection.recv(HELLO_BYTES, socket.MSG_WAITALL)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


def test_lent_devices_change_no_word(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        assert isinstance(engine.load(), Ready)
        alone = answer(engine)
    with rpc_server() as one, rpc_server() as other:
        for servers in ([one], [one, other], [one, one]):
            settings = over(*(server.address for server in servers))
            with running(vocabulary) as engine:
                ready = engine.load(attrs.evolve(ALL_LAYERS, settings=settings))
                assert isinstance(ready, Ready), ready
                assert answer(engine) == alone


def test_a_draft_model_beside_it_is_no_second_client(vocabulary: Vocabulary) -> None:
    with running(vocabulary) as engine:
        assert isinstance(engine.load(), Ready)
        alone = answer(engine)
    with rpc_server() as server, running(vocabulary) as engine:
        settings = attrs.evolve(over(server.address), draft_model=str(BUNDLED_MODEL))
        ready = engine.load(attrs.evolve(ALL_LAYERS, settings=settings))
        assert isinstance(ready, Ready), ready
        assert answer(engine) == alone


def test_embedding_beside_it_mixes_nothing_up(vocabulary: Vocabulary) -> None:
    """llama.cpp computes one context's graph for another where both use a lent device at once."""
    load = attrs.evolve(LOAD, embeddings=True, pooling_type="Mean")
    with running(vocabulary) as engine:
        assert isinstance(engine.load(load), Ready)
        alone = answer(engine)
    with rpc_server() as server, running(vocabulary) as engine:
        load = attrs.evolve(load, n_gpu_layers=-1, settings=over(server.address))
        assert isinstance(engine.load(load), Ready)
        document = np.array(engine.tokens("The fox jumps over the lazy dog."), np.int32).tobytes()
        for key in range(1, 13):
            engine.send(EmbedDocuments(1000 + key, [document] * DOCUMENTS))
            engine.start(key, STORY, max_tokens=24, sampling=attrs.evolve(GREEDY, ignore_eos=True))
            text, vectors, has_ended = b"", list[bytes](), False
            while not has_ended or len(vectors) < DOCUMENTS:
                frame = engine.receive()
                assert frame is not None, "the engine died"
                if isinstance(frame, EmbeddingStep):
                    assert not any(each.problem for each in frame.embedded)
                    vectors += [each.values for each in frame.embedded]
                elif isinstance(frame, Step):
                    text += b"".join(token.text for token in frame.sampled)
                    has_ended = has_ended or bool(frame.endings)
            assert text == alone
            rows = np.frombuffer(b"".join(vectors), np.float32).reshape(DOCUMENTS, -1)
            assert np.allclose(rows, rows[0], atol=1e-2)


def test_images_are_encoded_at_home(vocabulary: Vocabulary, tmp_path: Path) -> None:
    """By llama.cpp's first GPU, which takes no turns and must not be a lent one."""
    projection = write_projector(tmp_path / "gemma3.gguf", kind="gemma3")
    load = attrs.evolve(LOAD, projection_path=str(projection))

    def seen(load: LoadModel) -> list[bytes]:
        with running(vocabulary) as engine:
            ready = engine.load(load)
            assert isinstance(ready, Ready), ready
            assert ready.senses.sees_images
            prompt = [*engine.tokens("Look: "), MEDIA_TOKEN, *engine.tokens(STORY)]
            greedy = attrs.evolve(GREEDY, ignore_eos=True)
            engine.start(99, STORY, max_tokens=400, sampling=greedy)  # words meanwhile
            for red in range(20):
                pixels = picture((red * 12, 20, 10), width=64, height=32).tobytes()
                images = [Image(64, 32, pixels)]
                engine.start(red, prompt, max_tokens=8, sampling=greedy, media=images)
                engine.until_ended(red)
            engine.until_ended(99)
            return [engine.texts[key] for key in sorted(engine.texts)]

    alone = seen(load)
    with rpc_server() as server:
        load = attrs.evolve(load, n_gpu_layers=-1, settings=over(server.address))
        assert seen(load) == alone


def test_without_layers_to_offload_the_engine_does_not_depend_on_the_server(
    vocabulary: Vocabulary,
) -> None:
    with rpc_server() as server, running(vocabulary) as engine:
        ready = engine.load(attrs.evolve(LOAD, n_gpu_layers=0, settings=over(server.address)))
        assert isinstance(ready, Ready), ready
        server.kill()
        assert answer(engine)


def test_a_server_that_is_not_there_is_named(vocabulary: Vocabulary) -> None:
    with nobody_listens() as address, running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(ALL_LAYERS, settings=over(address)))
        assert isinstance(failed, LoadFailed)
        assert failed.stage == "model"
        assert f"no RPC server at {address}: Connection refused" in failed.reason
        assert engine.process.wait() == 0


def test_a_server_that_another_engine_has_is_named(vocabulary: Vocabulary) -> None:
    with rpc_server() as server, running(vocabulary) as first, running(vocabulary) as second:
        load = attrs.evolve(ALL_LAYERS, settings=over(server.address))
        assert isinstance(first.load(load), Ready)
        failed = second.load(load)
        assert isinstance(failed, LoadFailed)
        assert server.address in failed.reason
        assert "works for one engine at a time" in failed.reason
        assert answer(first)


def test_a_server_that_falls_silent_after_its_greeting_is_named(vocabulary: Vocabulary) -> None:
    with greets_and_no_more() as address, running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(ALL_LAYERS, settings=over(address)))
        assert isinstance(failed, LoadFailed)
        assert failed.stage == "model"
        assert f"{address} answers a greeting and then does not name its devices" in failed.reason
        assert engine.process.wait() == 0


def test_more_devices_than_llama_cpp_takes_are_refused(vocabulary: Vocabulary) -> None:
    with rpc_server() as server, running(vocabulary) as engine:
        port = server.address.partition(":")[2]
        names = [f"127.0.0.{'0' * zeros}1:{port}" for zeros in range(16)]  # one server, 16 names
        failed = engine.load(attrs.evolve(ALL_LAYERS, settings=over(*names)))
        assert isinstance(failed, LoadFailed)
        assert "17 devices, llama.cpp takes 16" in failed.reason


def test_an_engine_dies_of_a_server_lost_in_the_middle_of_an_answer(vocabulary: Vocabulary) -> None:
    with rpc_server() as server, running(vocabulary) as engine:
        load = attrs.evolve(ALL_LAYERS, slots=1, settings=over(server.address))
        assert isinstance(engine.load(load), Ready)
        endless = attrs.evolve(GREEDY, ignore_eos=True)
        engine.start(1, STORY, max_tokens=1900, sampling=endless)
        while not (isinstance(frame := engine.receive(), Step) and frame.sampled):
            pass
        server.kill()
        while frame is not None:  # what it had drawn before, then nothing
            assert not (isinstance(frame, Step) and frame.endings)
            frame = engine.receive()
        assert engine.process.wait() == -signal.SIGABRT


def test_an_agent_survives_the_loss_says_so_and_serves_again_when_the_server_is_back() -> None:
    with kept_address() as address, rpc_server(address) as server:
        options = [f"--rpc={server.address}"]
        with Fleet.start(
            agents=1,
            model=None,
            agent_options=options,
            balancer_options=["--buffered-request-timeout=1000", "--continuation-wait=3000"],
        ) as fleet:
            fleet.desire(BUNDLED_MODEL, n_gpu_layers=99)
            fleet.wait_serving()
            heard = Heard()

            async def lose_it_in_the_middle() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(
                        listen, fleet.inference, CONVERSATION, story(1, max_tokens=700), heard
                    )
                    await until_first_tokens([heard], 1)
                    await trio.to_thread.run_sync(server.kill)

            trio.run(lose_it_in_the_middle)
            assert len(heard.endings) == 1, heard
            assert heard.lines_after_ending == 0

            def names_it(view: FleetView) -> bool:
                [agent] = view["agents"]
                return bool(agent["issues"]) and f"no RPC server at {server.address}" in (
                    agent["detail"] or ""
                )

            fleet.wait_until(names_it, what="the agent names the lost server", nobody_ends=True)
            log = fleet.agents["a1"].tail(5000)
            assert "Remote RPC server crashed" in log
            with rpc_server(server.address):
                fleet.wait_until(lambda view: serving(view, 1), what="it serves again")
            os.kill(fleet.agents["a1"].pid, 0)
