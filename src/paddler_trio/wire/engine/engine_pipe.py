"""Frames between an agent and its engine process: tokens only, nothing about language.

A :class:`Step` carries everything one pass of the engine produced, for all sequences at once.
``pipe_codec`` turns frames into bytes.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeAlias

import attrs

from paddler_trio.wire.engine.engine_settings import EngineSettings
from paddler_trio.wire.engine.media import NO_SENSES, Medium, Senses
from paddler_trio.wire.engine.memory_need import MemoryUse
from paddler_trio.wire.engine.sampler_stages import Sampling


def _size(value: Sized) -> str:
    """Return the number of items, for a ``repr``, instead of thousands of tokens or bytes."""
    return f"<{len(value)}>"


# ------------------------------------------------------------------ agent -> engine


@attrs.frozen
class LoadModel:
    """The first frame: what to load and how. Paths are local to the engine's machine.

    With ``embeddings`` a second context over the same weights embeds documents beside generation,
    with ``pooling_type``: one of Paddler's names, ``Unspecified`` for the model's own.
    ``projection_path`` is a multimodal projection, None for none. ``adapters``: paths of LoRA
    adapters that sequences choose by their places.
    """

    model_path: str
    slots: int
    context_size: int
    n_batch: int
    n_gpu_layers: int
    k_cache_dtype: str
    v_cache_dtype: str
    threads: int
    package_version: str
    settings: EngineSettings = attrs.field(factory=EngineSettings)
    embeddings: bool = False
    pooling_type: str = "Unspecified"
    projection_path: str | None = None
    adapters: list[str] = attrs.field(factory=list)


@attrs.frozen
class Thoughts:
    """The texts between which a model quotes its own marks without meaning them; ``is_open``: the
    answer begins there."""

    open: str
    close: str
    is_open: bool


@attrs.frozen
class Grammar:
    """A grammar that every sampled token must fit, from the first or from a trigger on.

    With triggers the grammar sleeps until one of the ``trigger_tokens`` is sampled (it takes that
    token first), or the sampled text matches one of the ``trigger_patterns`` (an ECMAScript regular
    expression over all text sampled so far; the grammar takes the text from its first group on).
    No trigger counts within ``thoughts``.

    ``lark``: the grammar as llguidance reads it.
    """

    lark: str = attrs.field(repr=lambda text: f"{len(text)} characters")
    trigger_tokens: list[int] = attrs.field(factory=list)
    trigger_patterns: list[str] = attrs.field(factory=list)
    thoughts: Thoughts | None = None


@attrs.frozen
class ReasoningBudget:
    """End reasoning after ``max_tokens`` tokens by forcing ``close``.

    Reasoning begins where the sampled tokens contain ``open``, or at once if ``is_open``, and ends
    with ``close``. Once it ended it is not counted again.
    """

    max_tokens: int
    open: list[int]
    close: list[int]
    is_open: bool


PROBE_KEY = 0
"""The key of what an engine computes before it serves; its counters leave it out. Requests have
others."""


@attrs.frozen
class AdapterScale:
    """The adapter at this place of :attr:`LoadModel.adapters` counts so much."""

    place: int
    scale: float


@attrs.frozen
class StartSequence:
    """Continue these tokens. ``key`` is never used twice on one pipe.

    ``media`` are shown, or heard, where ``MEDIA_TOKEN`` stands, in that order.

    ``sampled`` are tokens that another engine sampled already: they are computed like the prompt,
    accepted by grammar and penalties like any sampled token, and count towards ``max_tokens``.
    ``max_tokens`` 0 means as many as fit. ``logprobs``: alternatives to report with each token, -1
    for no report. ``isolated``: an engine may have died of it, so for a while it is computed by
    itself. ``reuse_prefix``: whether resident tokens may serve this sequence and its own
    stay resident; only sequences of equal ``salt`` and ``adapters`` share. ``hides_controls``:
    control tokens are reported without text. ``adapters``: by which it is computed, beside those
    that always count.
    """

    key: int
    tokens: list[int] = attrs.field(repr=_size)
    sampled: list[int] = attrs.field(repr=_size)
    max_tokens: int
    sampling: Sampling = attrs.field(repr=False)
    grammar: Grammar | None
    reasoning: ReasoningBudget | None = None
    logprobs: int = -1
    reuse_prefix: bool = True
    salt: str = ""
    media: list[Medium] = attrs.field(factory=list, repr=_size)
    isolated: bool = False
    hides_controls: bool = False
    adapters: list[AdapterScale] = attrs.field(factory=list)


@attrs.frozen
class StopSequence:
    """End this sequence at the next pass; answered by an ending like any other."""

    key: int


@attrs.frozen
class EmbedDocuments:
    """Embed each of these documents: its tokens as int32, little-endian, one after the other.

    Answered by one :class:`Embedded` for each, in any order. ``key`` is never used twice.
    ``isolated``: an engine may have died of them, so no others are computed beside them.
    """

    key: int
    documents: list[bytes] = attrs.field(repr=_size)
    isolated: bool = False


@attrs.frozen
class StopEmbedding:
    """Drop what is left of these documents; no result follows after the next step, which comes
    even if it has none."""

    key: int


@attrs.frozen
class Ping:
    """Answered by a :class:`Pong` at once, also in the middle of a long pass."""


ToEngine: TypeAlias = (
    LoadModel | StartSequence | StopSequence | EmbedDocuments | StopEmbedding | Ping
)


# ------------------------------------------------------------------ engine -> agent


@attrs.frozen
class Loading:
    """The part of the weights that is in memory, 0..1."""

    progress: float


@attrs.frozen
class LoadFailed:
    """The model cannot serve; the engine exits after this frame.

    ``stage`` is ``model`` (the file), ``encoder`` (the file: it was to generate, but is an encoder
    and has no chat template) or ``context`` (its settings on this machine).
    """

    stage: str
    reason: str


@attrs.frozen
class EmbeddingShape:
    """The sizes that a context which embeds was made with.

    ``max_tokens``: the longest document it takes. ``width``: floats of one vector, or classes with
    rank pooling. ``pooling``: what is really done: ``None``, ``Mean``, ``Cls``, ``Last``, ``Rank``.
    """

    max_tokens: int
    width: int
    pooling: str


@attrs.frozen
class Ready:
    """Loaded and warmed up. ``cells`` is the KV space of one slot, in tokens.

    An encoder cannot generate and has no cells. ``embedding`` is None if it was not asked for, or
    with an ``embedding_problem`` if this model cannot do it; ``senses`` has none without a
    projection, or with a ``projection_problem`` if it cannot be used. ``memory`` is None where
    this build of llama.cpp does not count its buffers.
    """

    cells: int
    n_batch: int
    n_ctx_train: int
    n_vocab: int
    can_generate: bool = True
    embedding: EmbeddingShape | None = None
    embedding_problem: str = ""
    senses: Senses = NO_SENSES
    projection_problem: str = ""
    memory: MemoryUse | None = None


@attrs.frozen
class Ending:
    """The end of a sequence and its reason; always the last entry with its key.

    ``reason``: ``stop`` (the model ended it), ``length`` (max_tokens), ``cells`` (its part of the
    context is full), ``stopped`` (asked to), ``refused`` (cannot fit), ``grammar_invalid``,
    ``grammar_rejected``, ``image_failed`` (cannot be encoded), ``image_too_large`` (one has
    ``num_image_tokens``, more than ``n_batch``), ``cannot_see`` (no projection) or ``failed``.
    ``detail`` is a sentence for all from ``refused`` on. Tokens of images and of sounds are
    counted apart from those of the prompt. Times are measured from the moment a stream was found
    for it.
    """

    key: int
    reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    detail: str = ""
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0
    num_image_tokens: int = 0
    n_batch: int = 0
    num_preemptions: int = 0
    num_audio_tokens: int = 0


@attrs.frozen
class Logprobs:
    """Natural logarithms of probabilities, before any sampler changed them: of the sampled token,
    then of the most likely ones, best first. A hundred of them come with one token, so they are
    three lists and no objects.

    Args:
      texts: the bytes of each token.
    """

    tokens: list[int]
    texts: list[bytes]
    values: list[float]


@attrs.frozen
class SampledToken:
    """One token of one sequence. ``text`` are its bytes, possibly part of a character;
    ``logprobs``: if they were asked for."""

    key: int
    token: int
    text: bytes
    logprobs: Logprobs | None = None


@attrs.frozen
class Progress:
    """The progress of a prompt: ``computed`` of its ``total`` tokens, ``cached`` of them not by
    itself.

    ``since_ms``: since a stream was found for it. Sent at most twice a second for each while there
    is more to compute, and once with the first token after it.
    """

    key: int
    total: int
    cached: int
    computed: int
    since_ms: int = 0


@attrs.frozen
class Step:
    """Everything that one pass produced."""

    sampled: list[SampledToken]
    endings: list[Ending]
    progress: list[Progress] = attrs.field(factory=list)
    preempted: list[int] = attrs.field(factory=list)
    """Keys of sequences that gave their cells to others; they go on later."""


@attrs.frozen
class Embedded:
    """The vectors of one document: ``values`` are float32, little-endian, not normalised.

    One vector, but one for each token without pooling. No values if there is a ``problem``.
    """

    key: int
    index: int
    values: bytes = attrs.field(repr=_size)
    problem: str = ""


@attrs.frozen
class EmbeddingStep:
    """Everything that one embedding pass produced, for all requests."""

    embedded: list[Embedded]


@attrs.define(kw_only=True)
class EngineStats:
    """Counts of what the engine did since it was loaded, and what it holds now; sent at most twice
    a second by each of its threads.

    Counts are tokens unless named otherwise; ``busy_ms`` is time spent computing passes,
    ``draw_ms`` sampling from them. ``restores``: how often a stored prefix was taken back, of
    ``restored_tokens`` in all; they are among the ``cached_tokens``. ``last_*`` describe the newest
    pass; ``threads``: how many compute the next one. Embeddings are counted apart:
    ``embedding_documents`` (a chunk is one), ``embedding_tokens``, ``embedding_passes`` and
    ``embedding_ms``, the time spent computing these. An encoder has no other statistics.

    Not frozen: the engine counts in one, and sends copies of it.
    """

    passes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    drawn_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    busy_ms: float = 0.0
    draw_ms: float = 0.0
    last_sequences: int = 0
    last_tokens: int = 0
    last_ms: float = 0.0
    threads: int = 0
    running: int = 0
    waiting: int = 0
    cells_total: int = 0
    cells_used: int = 0
    cells_resident: int = 0
    stored_tokens: int = 0
    stored_bytes: int = 0
    restores: int = 0
    restored_tokens: int = 0
    embedding_documents: int = 0
    embedding_tokens: int = 0
    embedding_passes: int = 0
    embedding_ms: float = 0.0


@attrs.frozen
class Pong:
    """The engine process runs."""


FromEngine: TypeAlias = Loading | LoadFailed | Ready | Step | EmbeddingStep | EngineStats | Pong
