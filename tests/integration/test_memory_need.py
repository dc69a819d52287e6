"""What a dry run predicts is what the engine then allocates, wherever the model is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import gguf
import numpy as np
import pytest
import trio
from engine_client import LOAD, running
from fleet import children

from encoder_models import write_bert
from hub_server import Repository, hub_server
from memory_models import write_hybrid, write_recurrent, write_sliding
from paddler_trio.agent.model.model_fit import required
from paddler_trio.errors import MemoryUnknownError
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.models.download.header_fetch import FIRST_BYTES, MAX_FETCHED_BYTES
from paddler_trio.models.hub.hub_settings import HubSettings
from paddler_trio.models.memory.dry_run_process import open_dry_run
from paddler_trio.models.memory.memory_correction import KnownNeeds
from paddler_trio.models.memory.memory_prediction import (
    memory_need,
    open_memory_questions,
    remember_load,
)
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.system.machine import available_memory_bytes
from paddler_trio.wire.engine.engine_pipe import LoadModel, Ready
from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.memory_need import MemoryNeed, MemoryUse
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    LocalToAgent,
    NoModel,
    UrlModel,
)
from vision_models import write_projector

MIB = 1 << 20
LOADS = {
    "plain": LOAD,
    "quantised cache": attrs.evolve(LOAD, context_size=8192, k_cache_dtype="Q8_0"),
    "unified": attrs.evolve(LOAD, settings=EngineSettings(unified=True, flash_attention="off")),
    "embeds": attrs.evolve(LOAD, embeddings=True, n_batch=2048),
    "drafts": attrs.evolve(
        LOAD, settings=EngineSettings(max_drafts=4, draft_model=str(BUNDLED_MODEL))
    ),
}
WRITERS: dict[str, Callable[[Path], Path]] = {
    "sliding": write_sliding,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
    "encoder": write_bert,
}


def used(load: LoadModel, vocabulary: Vocabulary) -> MemoryUse:
    with running(vocabulary, is_command=True) as engine:
        ready = engine.load(load)
    assert isinstance(ready, Ready), ready
    assert ready.memory is not None
    return ready.memory


def check(need: MemoryNeed, use: MemoryUse) -> None:
    for predicted, actual in zip(need.devices, use.devices, strict=True):
        assert predicted.name == actual.name
        for part in ("weights", "kv", "compute", "embedding", "draft"):
            size = getattr(actual, part)
            assert getattr(predicted, part) == pytest.approx(size, rel=0.02, abs=65536), part
    caches = need.host.prefixes + need.host.images  # empty yet
    assert abs(need.host_needed - caches - use.resident - use.mapped) < 50 * MIB


@pytest.mark.parametrize("case", LOADS)
async def test_prediction_is_what_the_engine_allocates(case: str, vocabulary: Vocabulary) -> None:
    check(await memory_need(LOADS[case]), used(LOADS[case], vocabulary))


@pytest.mark.parametrize("kind", WRITERS)
async def test_other_kinds_of_memory_are_predicted_too(
    kind: str, tmp_path: Path, vocabulary: Vocabulary
) -> None:
    path = WRITERS[kind](tmp_path / "m.gguf")
    load = attrs.evolve(LOAD, model_path=str(path), slots=6, embeddings=kind == "encoder")
    need = await memory_need(load)
    assert not need.is_extrapolated
    assert (need.n_ctx == 0) == (kind == "encoder")
    check(need, used(load, vocabulary))


@pytest.mark.parametrize("unified", [False, True])
async def test_states_of_many_slots_are_continued_from_few(
    unified: bool, tmp_path: Path, vocabulary: Vocabulary
) -> None:
    path = write_recurrent(tmp_path / "m.gguf")
    load = attrs.evolve(
        LOAD, model_path=str(path), slots=20, settings=EngineSettings(unified=unified)
    )
    script = (
        "from functools import partial\n"
        "from paddler_trio.processes.engine.memory import dry_run\n"
        "dry_run.Trial = partial(dry_run.Trial, max_state_bytes=100_000)\n"
        "dry_run.main()"
    )
    async with open_dry_run(command=[sys.executable, "-c", script]) as dry_run:
        need = await dry_run.need(load)
    assert need.is_extrapolated
    actual = used(load, vocabulary).devices[0]
    assert need.devices[0].kv == pytest.approx(actual.kv, rel=0.01)
    assert actual.compute <= need.devices[0].compute <= actual.compute + 10 * MIB


@pytest.mark.parametrize("kind", ["janus_pro", "gemma3", "qwen2vl"])
async def test_a_projection_is_counted_and_its_way_of_looking_too(
    kind: str, tmp_path: Path, vocabulary: Vocabulary
) -> None:
    path = write_projector(tmp_path / "p.gguf", kind=kind, side=48, layers=2)
    load = attrs.evolve(LOAD, projection_path=str(path), context_size=4096, n_batch=1024)
    need = await memory_need(load)
    check(need, used(load, vocabulary))
    tensors = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    assert tensors < need.devices[0].projection < tensors + 20 * MIB
    assert need.host.images == load.settings.image_cache_bytes
    assert need.projection_problem == ""


async def test_adapters_and_caches_are_counted(tmp_path: Path) -> None:
    adapter = tmp_path / "a.gguf"
    adapter.write_bytes(bytes(12345))
    settings = EngineSettings(lora=[f"{adapter}=0.5"], prefix_store_bytes=7 * MIB)
    need = await memory_need(attrs.evolve(LOAD, settings=settings))
    assert sum(device.lora for device in need.devices) == 12345
    assert need.host.prefixes == 7 * MIB
    chosen = await memory_need(attrs.evolve(LOAD, settings=settings, adapters=[str(adapter)] * 2))
    assert sum(device.lora for device in chosen.devices) == 3 * 12345


async def test_one_process_answers_for_other_parameters_of_the_model() -> None:
    async with open_dry_run() as dry_run:
        small = await dry_run.need(LOAD)
        large = await dry_run.need(attrs.evolve(LOAD, context_size=8192))
        again = await dry_run.need(LOAD)
    assert large.devices[0].kv == 4 * small.devices[0].kv
    assert again.devices[0].needed == small.devices[0].needed


async def test_devices_of_other_machines_are_not_counted() -> None:
    load = attrs.evolve(LOAD, settings=EngineSettings(rpc=["localhost:1"]))
    async with open_dry_run() as dry_run:
        with pytest.raises(MemoryUnknownError, match="rpc") as raised:
            await dry_run.need(attrs.evolve(load, n_gpu_layers=1))
        assert raised.value.kind == "unsupported"
        assert (await dry_run.need(load)).architecture == "llama", "no layer goes there"


async def test_a_load_corrects_the_next_prediction(tmp_path: Path, vocabulary: Vocabulary) -> None:
    hub = HubSettings(cache=tmp_path / "hub", url_cache=tmp_path / "urls")
    model = LocalToAgent(str(BUNDLED_MODEL))
    first, _ = await asked(model, hub)
    assert first.host.correction == 0
    use = used(LOAD, vocabulary)
    await remember_load(LOAD, first, attrs.evolve(use, resident=use.resident + 40 * MIB), hub)
    second, _ = await asked(model, hub)
    assert abs(second.host_needed - use.resident - use.mapped - 40 * MIB) < 2 * MIB
    assert (await trio.Path(tmp_path / "memory.json").stat()).st_size < 4096


# ------------------------------------------------------------------------- remote models


def write_parts(folder: Path, *, parts: int, words: int, characters: int = 80) -> list[Path]:
    """A model of one layer and so many words of so many characters, in so many files."""
    shapes = {"token_embd": (words, 64), "output_norm": (64,), "blk.0.attn_norm": (64,)}
    shapes |= {f"blk.0.attn_{name}": (64, 64) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_norm": (64,), "blk.0.ffn_gate": (64, 64), "blk.0.ffn_up": (64, 64)}
    shapes |= {"blk.0.ffn_down": (64, 64)}
    names = list(shapes)
    paths = []
    for part in range(parts):
        suffix = f"-{part + 1:05}-of-{parts:05}" if parts > 1 else ""
        path = folder / f"m{suffix}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(names))
        if part == 0:
            writer.add_context_length(512)
            writer.add_embedding_length(64)
            writer.add_block_count(1)
            writer.add_feed_forward_length(64)
            writer.add_head_count(4)
            writer.add_layer_norm_rms_eps(1e-5)
            writer.add_tokenizer_model("llama")
            writer.add_token_list([f"\u2581{number:0{characters}}" for number in range(words)])
            writer.add_token_scores([0.0] * words)
            writer.add_token_types([gguf.TokenType.NORMAL] * words)
        for name in names[part::parts]:
            kind = np.float32 if len(shapes[name]) == 1 else np.float16
            writer.add_tensor(f"{name}.weight", np.zeros(shapes[name], kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


async def asked(
    model: DesiredModel, hub: HubSettings, load: LoadModel = LOAD
) -> tuple[MemoryNeed, int]:
    """The need, and how many bytes were fetched for it."""
    async with open_memory_questions(model, NoModel(), hub) as questions:
        return await questions.need(load), questions.fetched_bytes


async def test_the_same_question_needs_no_process_again(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    shutil.copyfile(LOAD.model_path, model)
    known, hub = KnownNeeds(available_memory_bytes), HubSettings(cache=tmp_path, url_cache=tmp_path)
    needs, processes = [], []
    for load in (LOAD, LOAD, attrs.evolve(LOAD, context_size=8192)):
        async with open_memory_questions(
            LocalToAgent(str(model)), NoModel(), hub, known=known
        ) as questions:
            needs.append(required(await questions.need(load)))
            processes.append(len([pid for pid in children(os.getpid()) if is_dry_run(pid)]))
    assert processes == [1, 0, 1]
    assert needs[0] == needs[1] != needs[2]


def is_dry_run(pid: int) -> bool:
    return (
        b"paddler_trio.processes.engine.memory.dry_run" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


async def test_remote_models_are_predicted_from_their_headers(tmp_path: Path) -> None:
    files = write_parts(tmp_path, parts=3, words=2000)
    large = tmp_path / "large"
    large.mkdir()
    (whole,) = write_parts(large, parts=1, words=6000, characters=900)  # 6 MB of header
    contents = {path.name: path.read_bytes() for path in [*files, whole]}
    here, _ = await asked(
        LocalToAgent(str(files[0])), HubSettings(cache=tmp_path, url_cache=tmp_path)
    )
    with hub_server({"org/repo": Repository(contents)}) as hub:
        hub.stored |= contents
        settings = HubSettings(
            endpoint=hub.hub_url, cache=tmp_path / "hub", url_cache=tmp_path / "urls"
        )
        model = HuggingFaceModel(filename=files[0].name, repo_id="org/repo", revision="main")
        need, fetched = await asked(model, settings)
        assert need.devices[0].needed == here.devices[0].needed > 0
        assert need.file_bytes == here.file_bytes == sum(path.stat().st_size for path in files)
        assert fetched < sum(len(data) for data in contents.values())
        url = UrlModel(f"{hub.storage_url}/storage/{files[0].name}")
        need, _ = await asked(url, settings)
        assert need.devices[0].needed == here.devices[0].needed
        hub.served_bytes = 0
        model = attrs.evolve(model, filename=whole.name)
        need, fetched = await asked(model, settings)
        assert need.n_vocab == 6000
        assert FIRST_BYTES < fetched < 2 * FIRST_BYTES + 65536 < MAX_FETCHED_BYTES
        assert hub.served_bytes <= fetched + MIB, "what was on its way when the connection ended"
        for refused in (
            attrs.evolve(model, filename="none.gguf"),
            attrs.evolve(url, url=url.url + "x"),
        ):
            with pytest.raises(MemoryUnknownError) as raised:
                await asked(refused, settings)
            assert raised.value.kind == "unreachable"
    left = {path.name for path in await trio.Path(tmp_path).iterdir()}
    assert left == {"large", *(path.name for path in files)}, "no cache was begun"


async def test_no_byte_beyond_64_mib_is_fetched(tmp_path: Path) -> None:
    header = b"GGUF" + b"\x03\0\0\0" + (1).to_bytes(8, "little") * 2
    header += (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little")
    header += (8).to_bytes(4, "little") + (3_900_000).to_bytes(8, "little")
    piece = (1000).to_bytes(8, "little") + bytes(1000)
    with hub_server() as hub:
        hub.stored["m.gguf"] = header + piece * 80_000
        settings = HubSettings(cache=tmp_path / "hub", url_cache=tmp_path / "urls")
        with pytest.raises(MemoryUnknownError, match="limit") as raised:
            await asked(UrlModel(f"{hub.storage_url}/storage/m.gguf"), settings)
        assert raised.value.kind == "header_too_large"
        assert hub.served_bytes <= MAX_FETCHED_BYTES


async def test_offline_only_what_is_cached_is_asked_about(tmp_path: Path) -> None:
    settings = HubSettings(cache=tmp_path / "hub", url_cache=tmp_path / "urls", offline=True)
    for model in (
        HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main"),
        UrlModel("http://127.0.0.1:1/m.gguf"),
    ):
        with pytest.raises(MemoryUnknownError, match="HF_HUB_OFFLINE") as raised:
            await asked(model, settings)
        assert raised.value.kind == "unreachable"
