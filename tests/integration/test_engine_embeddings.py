"""The engine process embedding: right vectors however they are packed, and beside generation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import gguf
import numpy as np
import numpy.typing as npt
import pytest
from engine_client import GREEDY, LOAD, STORY, Engine, running

from encoder_models import CLS, N_CTX_TRAIN, SEP, WIDTH, WORDS, write_bert
from memory_models import write_hybrid, write_recurrent, write_sliding
from paddler_trio.agent.vocabulary import Vocabulary
from paddler_trio.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.engine_pipe import (
    EmbeddingShape,
    EmbeddingStep,
    EmbedDocuments,
    Ending,
    Figures,
    LoadFailed,
    Ready,
    StartSequence,
    Step,
    StopEmbedding,
)

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
def embedding(vocabulary: Vocabulary, model: Path, pooling: str) -> Iterator[tuple[Engine, Ready]]:
    with running(vocabulary) as engine:
        ready = engine.load(
            attrs.evolve(LOAD, model_path=str(model), embeddings=True, pooling_type=pooling)
        )
        assert isinstance(ready, Ready), ready
        yield engine, ready


def ask(engine: Engine, key: int, documents: Sequence[Document]) -> None:
    engine.send(EmbedDocuments(key, [np.array(each, "<i4").tobytes() for each in documents]))


def receive(engine: Engine) -> Step | EmbeddingStep:
    """The next frame that says something of a request."""
    while not isinstance(frame := engine.receive(), Step | EmbeddingStep):
        assert isinstance(frame, Figures), frame
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


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "ranker.gguf"
    return write_bert(path, pooling=gguf.PoolingType.RANK, classes=1)


WRITERS = {
    "encoder": write_bert,
    "sliding": write_sliding,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
}
LIMITS = {"decoder": (300, 1500), "encoder": (N_CTX_TRAIN, 5 + len(WORDS))}
"""The longest document, and the vocabulary."""


@pytest.mark.parametrize("kind", ["decoder", "encoder", "sliding", "recurrent", "hybrid"])
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
        assert ready == Ready(0, N_CTX_TRAIN, N_CTX_TRAIN, 5 + len(WORDS), False, shape)
        engine.send(StartSequence(5, [CLS, 7, SEP], [], 10, GREEDY, None))
        frame = receive(engine)
        assert isinstance(frame, Step)
        (ending,) = frame.endings
        assert (ending.key, ending.reason) == (5, "refused")
        assert "encoder" in ending.detail
    with running(vocabulary) as engine:
        failed = engine.load(attrs.evolve(LOAD, model_path=str(encoder)))
        assert isinstance(failed, LoadFailed)
        assert failed.stage == "model"
        assert "enable_embeddings" in failed.reason


def test_a_ranker_gives_the_score_of_its_classification_head(
    vocabulary: Vocabulary, ranker: Path
) -> None:
    weights = {each.name: np.array(each.data) for each in gguf.GGUFReader(ranker).tensors}
    documents = some_documents(20, longest=N_CTX_TRAIN, n_vocab=5 + len(WORDS))
    with embedding(vocabulary, ranker, "Cls") as (engine, _):
        firsts = one_at_a_time(engine, documents)
    with embedding(vocabulary, ranker, "Rank") as (engine, ready):
        assert ready.embedding == EmbeddingShape(N_CTX_TRAIN, 1, "Rank")
        ask(engine, 1, documents)
        found = answers(engine, k1=20)[1]
    for place, first in enumerate(firsts):
        hidden = np.tanh(weights["cls.weight"] @ first + weights["cls.bias"])
        (expected,) = weights["cls.output.weight"] @ hidden + weights["cls.output.bias"]
        (score,) = found[place]
        assert score == pytest.approx(expected, abs=0.01)


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


def test_answers_are_drawn_while_documents_are_embedded(vocabulary: Vocabulary) -> None:
    documents = [[7 + place % 100] * 200 for place in range(150)]
    endless = attrs.evolve(GREEDY, ignore_eos=True)
    with embedding(vocabulary, BUNDLED_MODEL, "Mean") as (engine, _):
        engine.start(1, STORY, sampling=endless, max_tokens=200)
        engine.until_ended(1)
        ask(engine, 1, documents)
        first = receive(engine)
        assert isinstance(first, EmbeddingStep)
        engine.start(2, STORY, sampling=endless, max_tokens=200)
        num_embedded = len(first.embedded)
        text = b""
        ending: Ending | None = None
        while ending is None:
            match receive(engine):
                case EmbeddingStep(embedded):
                    num_embedded += len(embedded)
                case Step(drawn, endings):
                    text += b"".join(token.text for token in drawn)
                    ending = endings[0] if endings else None
        assert num_embedded < len(documents), "the answer waited for every document"
        assert (ending.reason, text) == ("length", engine.texts[1])
        assert len(answers(engine, k1=len(documents) - num_embedded)[1]) > 0
