"""The engine process embedding: right vectors however they are packed, and beside generation."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import pytest
from engine_client import GREEDY, LOAD, STORY, Engine, running

from encoder_models import CLS, ENCODERS, N_CTX_TRAIN, SEP, VOCABULARY, WIDTH, write_bert
from lora_adapters import write_lora
from memory_models import write_hybrid, write_recurrent, write_sliding
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine.engine_pipe import (
    EmbeddingShape,
    EmbeddingStep,
    EmbedDocuments,
    Ending,
    EngineStats,
    LoadFailed,
    Ready,
    StartSequence,
    Step,
    StopEmbedding,
)
from paddler_trio.wire.engine.engine_settings import EngineSettings

Vector = npt.NDArray[np.float32]
Document = list[int]

POOLED = ("Mean", "Cls", "Last")
CLOSE = 0.05
"""Relative. Other batch shapes round 8-bit weights differently; a wrong pooling is off by 0.4."""


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(BUNDLED_MODEL)
    yield vocabulary
    vocabulary.close()


@contextmanager
def embedding(
    vocabulary: Vocabulary, model: Path, pooling: str, settings: EngineSettings | None = None
) -> Iterator[tuple[Engine, Ready]]:
    load = attrs.evolve(LOAD, model_path=str(model), embeddings=True, pooling_type=pooling)
    with running(vocabulary) as engine:
        ready = engine.load(attrs.evolve(load, settings=settings or EngineSettings()))
        assert isinstance(ready, Ready), ready
        yield engine, ready


def ask(engine: Engine, key: int, documents: Sequence[Document]) -> None:
    engine.send(EmbedDocuments(key, [np.array(each, "<i4").tobytes() for each in documents]))


def receive(engine: Engine) -> Step | EmbeddingStep:
    """The next frame that says something of a request."""
    while not isinstance(frame := engine.receive(), Step | EmbeddingStep):
        assert isinstance(frame, EngineStats), frame
    return frame


def answers(engine: Engine, **counts: int) -> dict[int, dict[int, Vector | str]]:
    """What came for each key (``k7=3``: three documents of key 7): vectors, or problems."""
    wanted = {int(name.removeprefix("k")): count for name, count in counts.items()}
    found: dict[int, dict[int, Vector | str]] = {key: {} for key in wanted}
    while any(len(found[key]) < count for key, count in wanted.items()):
        frame = receive(engine)
        assert isinstance(frame, EmbeddingStep), frame
        for each in frame.embedded:
            assert each.index not in found[each.key], "a document came twice"
            found[each.key][each.index] = each.problem or np.frombuffer(each.values, "<f4")
    return found


def one_at_a_time(engine: Engine, documents: Sequence[Document]) -> list[Vector]:
    vectors = []
    for place, document in enumerate(documents):
        key = 1000 + place
        ask(engine, key, [document])
        (vector,) = answers(engine, **{f"k{key}": 1})[key].values()
        assert not isinstance(vector, str), vector
        vectors.append(vector)
    return vectors


def off(found: Vector | str, expected: Vector) -> float:
    """The length of the difference, relative to the length of what is expected."""
    assert not isinstance(found, str), found
    return float(np.linalg.norm(found.ravel() - expected.ravel()) / np.linalg.norm(expected))


def some_documents(number: int, *, longest: int, n_vocab: int) -> list[Document]:
    dice = random.Random(number)
    return [
        [dice.randrange(n_vocab) for _ in range(dice.choice([1, 2, 7, longest // 3, longest]))]
        for _ in range(number)
    ]


def pooled(tokens: Vector, pooling: str) -> Vector:
    """What a pooling makes of the vectors of a document's tokens."""
    match pooling:
        case "Mean":
            return tokens.mean(axis=0)
        case "Cls":
            return tokens[0]
        case _:
            return tokens[-1]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("models") / "encoder.gguf")


WRITERS = {
    **ENCODERS,
    "sliding": write_sliding,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
}
LIMITS = {"decoder": (300, 1500), **dict.fromkeys(ENCODERS, (N_CTX_TRAIN, VOCABULARY))}
"""The longest document, and the vocabulary."""


@pytest.mark.parametrize("kind", ["decoder", *WRITERS])
def test_a_packed_document_has_the_vector_it_has_alone_whatever_the_pooling(
    vocabulary: Vocabulary, tmp_path: Path, kind: str
) -> None:
    model = BUNDLED_MODEL
    if kind != "decoder":
        model = WRITERS[kind](tmp_path / f"{kind}.gguf")
    longest, n_vocab = LIMITS.get(kind, (150, 64))
    documents = some_documents(30, longest=longest, n_vocab=n_vocab)
    with embedding(vocabulary, model, "None") as (engine, _):
        by_token = [
            each.reshape(len(d), -1)
            for each, d in zip(one_at_a_time(engine, documents), documents, strict=True)
        ]
        ask(engine, 1, documents)
        found = answers(engine, k1=30)[1]
    for place, alone in enumerate(by_token):
        assert off(found[place], alone) < CLOSE
    for pooling in POOLED:
        with embedding(vocabulary, model, pooling) as (engine, ready):
            assert ready.embedding is not None
            assert ready.embedding.pooling == pooling
            alone = one_at_a_time(engine, documents)
            for key in range(1, 4):  # three requests, packed across each other
                ask(engine, key, documents[10 * key - 10 : 10 * key])
            found = answers(engine, k1=10, k2=10, k3=10)
        for place, tokens in enumerate(by_token):
            expected = pooled(tokens, pooling)
            assert off(alone[place], expected) < CLOSE, pooling
            assert off(found[1 + place // 10][place % 10], expected) < CLOSE, pooling


def test_an_encoder_embeds_in_its_own_way_and_refuses_to_generate(
    vocabulary: Vocabulary, encoder: Path
) -> None:
    with embedding(vocabulary, encoder, "Unspecified") as (engine, ready):
        shape = EmbeddingShape(N_CTX_TRAIN, WIDTH, "Mean")
        plain = attrs.evolve(ready, memory=None)
        assert plain == Ready(0, N_CTX_TRAIN, N_CTX_TRAIN, VOCABULARY, False, shape)
        engine.send(StartSequence(5, [CLS, 7, SEP], [], 10, GREEDY, None))
        frame = receive(engine)
        assert isinstance(frame, Step)
        (ending,) = frame.endings
        assert (ending.key, ending.reason) == (5, "refused")
        assert "encoder" in ending.detail


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_alone_is_refused_and_told_what_it_can_do(
    vocabulary: Vocabulary, tmp_path: Path, kind: str
) -> None:
    model = ENCODERS[kind](tmp_path / "encoder.gguf")
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, model_path=str(model)))
        assert isinstance(failed, LoadFailed)
        assert "cannot generate text" in failed.reason
        assert "enable_embeddings" in failed.reason


def test_a_whole_t5_embeds_with_its_encoder(vocabulary: Vocabulary, tmp_path: Path) -> None:
    documents = some_documents(20, longest=N_CTX_TRAIN, n_vocab=VOCABULARY)
    found = []
    for kind in ("t5encoder", "t5"):  # of the same weights
        model = ENCODERS[kind](tmp_path / f"{kind}.gguf")
        with embedding(vocabulary, model, "Mean") as (engine, ready):
            assert not ready.can_generate
            found.append(one_at_a_time(engine, documents))
    for half, whole in zip(*found, strict=True):
        assert off(whole, half) < CLOSE


@pytest.mark.parametrize(("kind", "longest"), [("bert", N_CTX_TRAIN), ("nomic-bert", 512)])
def test_positions_are_stretched_where_they_are_not_learned(
    vocabulary: Vocabulary, tmp_path: Path, kind: str, longest: int
) -> None:
    """Beyond learned positions llama.cpp aborts."""
    model = ENCODERS[kind](tmp_path / "encoder.gguf")
    settings = EngineSettings(rope_scaling="linear", rope_freq_scale=0.125)
    with embedding(vocabulary, model, "Mean", settings) as (engine, ready):
        assert ready.embedding is not None
        assert ready.embedding.max_tokens == longest
        (vector,) = one_at_a_time(engine, [[7] * longest])
        assert np.isfinite(vector).all()


@pytest.mark.parametrize("kind", ["decoder", "bert"])
def test_an_adapter_changes_vectors_as_it_does_in_llama_cpp(
    vocabulary: Vocabulary, tmp_path: Path, kind: str
) -> None:
    model = BUNDLED_MODEL if kind == "decoder" else write_bert(tmp_path / "encoder.gguf")
    adapter = write_lora(tmp_path / "adapter.gguf", model)
    document = [7, 9, 5, 11, 6]
    vectors = {}
    for scale in (0.0, 0.5, 1.0):
        settings = EngineSettings(lora=[f"{adapter}={scale}"])
        with embedding(vocabulary, model, "Mean", settings) as (engine, _):
            (vectors[scale],) = one_at_a_time(engine, [document])
        direct = directly_embedded(model, document, adapter, scale)
        assert off(vectors[scale], direct) < 1e-3, scale
    with embedding(vocabulary, model, "Mean") as (engine, _):
        (plain,) = one_at_a_time(engine, [document])
    assert off(vectors[0.0], plain) < 1e-3
    assert off(vectors[1.0], plain) > CLOSE
    assert off(vectors[0.5], vectors[1.0]) > CLOSE


def directly_embedded(model: Path, document: Document, adapter: Path, scale: float) -> Vector:
    """The mean vector of a document from llama.cpp's own calls, with an adapter."""
    lib.llama_backend_init()
    of_model = lib.llama_model_default_params()
    of_model.n_gpu_layers = 0
    loaded = lib.llama_model_load_from_file(str(model).encode(), of_model)
    of_context = lib.llama_context_default_params()
    of_context.n_ctx = of_context.n_batch = of_context.n_ubatch = 64
    of_context.n_threads = of_context.n_threads_batch = 1
    of_context.embeddings = True
    of_context.pooling_type = lib.LLAMA_POOLING_TYPE_MEAN
    context = lib.llama_init_from_model(loaded, of_context)
    adapters = (lib.llama_adapter_lora_p_ctypes * 1)()
    adapters[0] = lib.llama_adapter_lora_init(loaded, str(adapter).encode())
    lib.llama_set_adapters_lora(context, adapters, 1, (ctypes.c_float * 1)(scale))
    tokens = (lib.llama_token * len(document))(*document)
    batch = lib.llama_batch_get_one(tokens, len(document))
    assert lib.llama_decode(context, batch) == 0
    width = lib.llama_model_n_embd(loaded)
    vector = np.ctypeslib.as_array(lib.llama_get_embeddings_seq(context, 0), (width,)).copy()
    lib.llama_free(context)
    lib.llama_model_free(loaded)
    return vector


@pytest.mark.parametrize("kind", ["decoder", "bert"])
def test_documents_tokens_and_passes_are_counted(
    vocabulary: Vocabulary, tmp_path: Path, kind: str
) -> None:
    model = BUNDLED_MODEL if kind == "decoder" else write_bert(tmp_path / "encoder.gguf")
    with embedding(vocabulary, model, "Mean") as (engine, ready):
        longest = min(64, ready.n_batch)
        ask(engine, 1, [[7] * longest, [8] * 3, [9] * 5, []])
        stats = counted(engine, documents=3)
        assert stats.embedding_tokens == longest + 8
        assert stats.embedding_ms > 0
        assert 1 <= stats.embedding_passes <= 3
        assert stats.passes == stats.drawn_tokens == 0
        if ready.can_generate:
            engine.start(2, "The capital of France is")
            engine.until_ended(2)
            engine.receive_figures()
            assert engine.stats is not None
            sampled = engine.stats.drawn_tokens
            assert sampled == len(engine.sampled[2])
            ask(engine, 3, [[7]])
            later = counted(engine, documents=4)
            assert (later.embedding_tokens, later.drawn_tokens) == (longest + 9, sampled)


def counted(engine: Engine, *, documents: int) -> EngineStats:
    """The figures in which so many documents are counted."""
    while not isinstance(frame := engine.receive(), EngineStats) or (
        frame.embedding_documents < documents
    ):
        assert isinstance(frame, EngineStats | EmbeddingStep), frame
    assert frame.embedding_documents == documents
    return frame


@pytest.mark.parametrize("own", [gguf.PoolingType.RANK, gguf.PoolingType.CLS, None])
def test_a_ranker_gives_the_score_of_its_classification_head(
    vocabulary: Vocabulary, tmp_path: Path, own: gguf.PoolingType | None
) -> None:
    ranker = write_bert(tmp_path / "ranker.gguf", pooling=own, classes=1)
    weights = {each.name: np.array(each.data) for each in gguf.GGUFReader(ranker).tensors}
    documents = some_documents(20, longest=N_CTX_TRAIN, n_vocab=VOCABULARY)
    with embedding(vocabulary, ranker, "Cls") as (engine, _):
        firsts = one_at_a_time(engine, documents)
    with embedding(vocabulary, ranker, "Rank") as (engine, ready):
        assert ready.embedding == EmbeddingShape(N_CTX_TRAIN, 1, "Rank")
        ask(engine, 1, documents)
        found = answers(engine, k1=20)[1]
    hidden = np.tanh(np.array(firsts) @ weights["cls.weight"].T + weights["cls.bias"])
    expected = hidden @ weights["cls.output.weight"].T + weights["cls.output.bias"]
    assert expected.std() > 0.1, "scores that are all alike prove nothing"
    scores = np.concatenate([found[place] for place in range(20)])
    assert off(scores, expected) < CLOSE


def test_what_cannot_be_embedded_says_why_and_the_rest_is_embedded(vocabulary: Vocabulary) -> None:
    with embedding(vocabulary, BUNDLED_MODEL, "Last") as (engine, _):
        ask(engine, 1, [[5, 6], [], [7] * 513, [5, 1_000_000], [-3], [7] * 512])
        found = answers(engine, k1=6)[1]
    assert isinstance(found[0], np.ndarray)
    assert isinstance(found[5], np.ndarray)
    assert found[1] == "the document has 0 tokens, must have 1 to 512"
    assert found[2] == "the document has 513 tokens, must have 1 to 512"
    assert "token 1000000 is outside the vocabulary" in str(found[3])
    assert "token -3 is outside the vocabulary" in str(found[4])


def test_a_model_without_a_classification_head_generates_and_says_why_it_cannot_rank(
    vocabulary: Vocabulary,
) -> None:
    with embedding(vocabulary, BUNDLED_MODEL, "Rank") as (engine, ready):
        assert ready.can_generate
        assert ready.embedding is None
        assert "classification head" in ready.embedding_problem
        engine.start(1, "The capital of France is")
        engine.until_ended(1)
        assert engine.texts[1].startswith(b" Paris.")


def test_a_stopped_request_is_forgotten_and_the_others_are_not(vocabulary: Vocabulary) -> None:
    long = [[7] * 400 for _ in range(200)]
    with embedding(vocabulary, BUNDLED_MODEL, "Mean") as (engine, _):
        ask(engine, 1, long)
        ask(engine, 2, [[5, 6]] * 3)
        engine.send(StopEmbedding(1))
        engine.send(StopEmbedding(99))
        ask(engine, 3, [[8, 9]] * 2)
        of_the_stopped = 0
        left = {2: 3, 3: 2}
        while any(left.values()):
            frame = receive(engine)
            assert isinstance(frame, EmbeddingStep)
            for each in frame.embedded:
                of_the_stopped += each.key == 1
                if each.key != 1:
                    left[each.key] -= 1
        assert of_the_stopped < 20


def test_answers_are_sampled_while_documents_are_embedded(vocabulary: Vocabulary) -> None:
    documents = [[7 + place % 100] * 200 for place in range(60)]
    endless = attrs.evolve(GREEDY, ignore_eos=True)
    with embedding(vocabulary, BUNDLED_MODEL, "Mean") as (engine, _):
        engine.start(1, STORY, sampling=endless, max_tokens=80)
        engine.until_ended(1)
        ask(engine, 1, documents)
        first = receive(engine)
        assert isinstance(first, EmbeddingStep)
        engine.start(2, STORY, sampling=endless, max_tokens=80)
        num_embedded = len(first.embedded)
        text = b""
        ending: Ending | None = None
        while ending is None:
            match receive(engine):
                case EmbeddingStep(embedded):
                    num_embedded += len(embedded)
                case Step(sampled, endings):
                    text += b"".join(token.text for token in sampled)
                    ending = endings[0] if endings else None
        assert num_embedded < len(documents), "the answer waited for every document"
        assert (ending.reason, text) == ("length", engine.texts[1])
        assert len(answers(engine, k1=len(documents) - num_embedded)[1]) > 0
