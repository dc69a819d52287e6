"""A dry run of hostile files: each is named for what it is, and hurts nobody but its process."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import gguf
import numpy as np
import pytest
import trio
from engine_client import LOAD

from hub_server import Misbehaviour, hub_server
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.memory.dry_run_process import DryRun, open_dry_run
from paddler_trio.models.memory.memory_prediction import memory_need, open_memory_questions
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.paddler.desired_state import NoModel, UrlModel

BUNDLED = BUNDLED_MODEL.read_bytes()


@pytest.fixture
async def dry_run() -> AsyncIterator[DryRun]:
    async with open_dry_run() as dry_run:
        yield dry_run


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(*keys: tuple[str, bytes], n_tensors: int = 0) -> bytes:
    pairs = b"".join(text(key.encode()) + value for key, value in keys)
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, len(keys)) + pairs


def string(value: str) -> bytes:
    return struct.pack("<I", 8) + text(value.encode())


def uint32(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def whole_model(path: Path, **keys: int) -> Path:
    """A model that llama.cpp would read, but for these numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        "context_length": 512,
        "embedding_length": 64,
        "block_count": 1,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        **keys,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("no_vocab")
    writer.add_tensor("token_embd.weight", np.zeros((8, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


HOSTILE = {
    "empty": (b"", "not_gguf", "is empty"),
    "another format": (b"PK\x03\x04" * 100, "not_gguf", "begins with b'PK"),
    "cut in its header": (BUNDLED[:5000], "truncated", "ends in its header"),
    "cut in its tensors": (BUNDLED[:-1000], "truncated", "file bounds"),
    "quintillions of tensors": (header(n_tensors=10**18), "not_gguf", "announces 1000000000"),
    "too large an array": (
        header(("k", struct.pack("<IIQ", 9, 8, 10**18))),
        "header_too_large",
        "the limit is 4000000",
    ),
    "unknown architecture": (
        header(("general.architecture", string("llama9"))),
        "unknown_architecture",
        "llama9",
    ),
    "no architecture": (header(), "unknown_architecture", "unknown model architecture"),
    "another byte order": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "not_gguf", "version is"),
}
BEHIND_A_URL = (
    "empty",
    "another format",
    "cut in its header",
    "cut in its tensors",
    "too large an array",
)
"""Those that differ in how much of them is fetched; what they are called is one code."""


async def test_hostile_headers_are_named_and_the_process_lives_on(
    dry_run: DryRun, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    for case, (data, kind, cause) in HOSTILE.items():
        path.write_bytes(data)
        with pytest.raises(MemoryUnknownError, match=cause) as raised:
            await dry_run.need(attrs.evolve(LOAD, model_path=str(path)))
        assert raised.value.kind == kind, case
    assert (await dry_run.need(LOAD)).architecture == "llama"


async def test_hostile_headers_of_a_server_are_named_and_fetch_little(tmp_path: Path) -> None:
    """The same behind a URL: of what cannot be a model no more is fetched than tells it so."""
    with hub_server({}) as server:
        hub = HubSettings(cache=tmp_path / "hub", url_cache=tmp_path / "urls")

        for number, case in enumerate(BEHIND_A_URL):  # each asks a process of its own
            data, kind, _ = HOSTILE[case]
            server.stored[f"{number}.gguf"] = data
            model = UrlModel(f"{server.storage_url}/storage/{number}.gguf")
            with trio.fail_after(60), pytest.raises(MemoryUnknownError) as raised:
                async with open_memory_questions(model, NoModel(), hub) as questions:
                    await questions.need(LOAD)
            assert raised.value.kind in {kind, "truncated", "unreachable"}
    most_bytes = 2 * sum(min(len(HOSTILE[case][0]), 8 << 20) for case in BEHIND_A_URL)
    assert server.served_bytes <= most_bytes


@pytest.mark.parametrize(
    "odd",
    [
        Misbehaviour(content_range="bytes 0-4194303/99999999999999999999"),
        Misbehaviour(content_range=f"bytes 0-4194303/{1 << 60}"),
        Misbehaviour(content_length="9" * 19, ignores_range=True),
        Misbehaviour(hides_length=True),
        Misbehaviour(drops_after=10),
        Misbehaviour(body=b"GGUF" + bytes(100)),
        Misbehaviour(status=302, headers={"Location": "http://169.254.169.254/m.gguf"}),
        Misbehaviour(status=302, headers={"Location": "m.gguf"}),
    ],
    ids=["20 digits", "an exbibyte", "no range", "no length", "drops", "zeros", "cloud", "circle"],
)
async def test_servers_that_lie_about_a_header_end_in_an_error(
    odd: Misbehaviour, tmp_path: Path
) -> None:
    with hub_server({}) as server:
        server.stored["m.gguf"] = header(n_tensors=1) + bytes(6 << 20)
        server.misbehave = lambda seen: odd
        hub = HubSettings(cache=tmp_path / "hub", url_cache=tmp_path / "urls")
        model = UrlModel(f"{server.storage_url}/storage/m.gguf")
        with trio.fail_after(60), pytest.raises(MemoryUnknownError):
            async with open_memory_questions(model, NoModel(), hub) as questions:
                await questions.need(LOAD)


async def test_a_header_of_64_mib_is_refused_at_once_and_costs_no_memory(
    dry_run: DryRun, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    count = 700_000
    path.write_bytes(
        header(("tokenizer.ggml.tokens", struct.pack("<IIQ", 9, 8, count)), n_tensors=1)
        + text(b"x" * 100) * count  # 75 MB
    )
    with pytest.raises(MemoryUnknownError, match="larger than 64 MiB") as raised:
        await dry_run.need(attrs.evolve(LOAD, model_path=str(path)))
    assert raised.value.kind == "header_too_large"


async def test_a_sparse_file_of_zeros_after_its_magic_is_refused(
    dry_run: DryRun, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(n_tensors=2000))
    os.truncate(path, 1 << 40)  # every tensor's name is empty: duplicates
    with pytest.raises(MemoryUnknownError) as raised:
        await dry_run.need(attrs.evolve(LOAD, model_path=str(path)))
    assert raised.value.kind in {"unknown_architecture", "model_refused"}


@pytest.mark.parametrize(
    "keys",
    [
        {"block_count": 2**31},
        {"embedding_length": 2**31},
        {"attention.head_count": 2**31},
        {"expert_count": 2**31},
        {"context_length": 2**32 - 1, "block_count": 0},
    ],
)
async def test_absurd_numbers_end_in_an_error(keys: dict[str, int], tmp_path: Path) -> None:
    path = whole_model(tmp_path / "m.gguf", **keys)
    with pytest.raises(MemoryUnknownError) as raised:
        await memory_need(attrs.evolve(LOAD, model_path=str(path), context_size=0))
    assert raised.value.kind in {"model_refused", "context_refused", "crashed"}


async def test_missing_files_are_named(dry_run: DryRun, tmp_path: Path) -> None:
    with pytest.raises(MemoryUnknownError, match="/no/such") as raised:
        await dry_run.need(attrs.evolve(LOAD, model_path="/no/such.gguf"))
    assert raised.value.kind == "missing"
    settings = EngineSettings(draft_model=str(tmp_path / "d.gguf"))
    with pytest.raises(MemoryUnknownError, match=r"--draft-model.*d\.gguf") as raised:
        await dry_run.need(attrs.evolve(LOAD, settings=settings))
    assert raised.value.kind == "missing"


async def test_a_context_that_cannot_be_made_is_refused(dry_run: DryRun) -> None:
    with pytest.raises(MemoryUnknownError, match="4 slots need 4") as raised:
        await dry_run.need(attrs.evolve(LOAD, context_size=3))
    assert raised.value.kind == "context_refused"
    settings = EngineSettings(flash_attention="off")
    with pytest.raises(MemoryUnknownError, match="quantized V cache requires flash_attn") as raised:
        await dry_run.need(attrs.evolve(LOAD, v_cache_dtype="Q8_0", settings=settings))
    assert raised.value.kind == "context_refused"


async def test_a_projection_that_is_none_is_a_problem_of_its_own(
    dry_run: DryRun, tmp_path: Path
) -> None:
    (tmp_path / "p.gguf").write_bytes(b"nonsense")
    for path in (str(tmp_path / "p.gguf"), str(tmp_path / "none.gguf"), str(BUNDLED_MODEL)):
        need = await dry_run.need(attrs.evolve(LOAD, projection_path=path))
        assert path in need.projection_problem
        assert sum(device.projection for device in need.devices) == 0
        assert sum(device.weights for device in need.devices) > 4 << 20


# --------------------------------------------------------------------------- the process


def child(script: str) -> list[str]:
    return [sys.executable, "-c", script]


async def test_a_dry_run_that_hangs_is_killed_in_time() -> None:
    hangs = child("import signal; signal.pause()")
    with trio.fail_after(60):
        async with open_dry_run(command=hangs, answer_within_s=0.2) as dry_run:
            with pytest.raises(MemoryUnknownError, match=r"within 0\.2 s") as raised:
                await dry_run.need(LOAD)
    assert raised.value.kind == "too_slow"


async def test_a_question_that_computes_for_ever_is_ended_by_its_processor_time() -> None:
    computes = child(
        "from paddler_trio.processes.engine.memory.dry_run import limit_processor_time\n"
        "limit_processor_time(1)\n"
        "while True: pass"
    )
    async with open_dry_run(command=computes) as dry_run:
        with pytest.raises(MemoryUnknownError, match="SIGXCPU") as raised:
            await dry_run.need(LOAD)
    assert raised.value.kind == "crashed"


async def test_a_dry_run_that_dies_leaves_its_last_words() -> None:
    dies = child(
        "import os, sys; sys.stderr.write('out of luck\\n'); sys.stderr.flush(); os.abort()"
    )
    async with open_dry_run(command=dies) as dry_run:
        with pytest.raises(MemoryUnknownError, match=r"SIGABRT.*out of luck") as raised:
            await dry_run.need(LOAD)
    assert raised.value.kind == "crashed"


async def test_a_dry_run_that_babbles_is_no_answer() -> None:
    async with open_dry_run(command=child("print('x' * 100)")) as dry_run:
        with pytest.raises(MemoryUnknownError) as raised:
            await dry_run.need(LOAD)
    assert raised.value.kind == "crashed"


async def test_a_cancelled_dry_run_leaves_no_process() -> None:
    async with open_dry_run() as dry_run:
        assert dry_run.pid is None, "nothing was asked"
        await dry_run.need(LOAD)
        pid = dry_run.pid
        with trio.move_on_after(0):
            await dry_run.need(LOAD)
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_memory_of_the_process_is_limited() -> None:
    """A dry run may not take more than its limit, whatever llama.cpp allocates."""
    script = (
        "from paddler_trio.processes.engine.memory import dry_run\n"
        "dry_run._limit_myself()\n"
        "import mmap\n"
        "mmap.mmap(-1, dry_run.MEMORY_BYTES + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
    )
    async with open_dry_run(command=child(script)) as dry_run:
        with pytest.raises(MemoryUnknownError, match="Cannot allocate memory"):
            await dry_run.need(LOAD)
