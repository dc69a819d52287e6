"""Do what one request needs of a worker: parse it, then prepare it for the engine or answer it."""

from __future__ import annotations

import secrets
from typing import assert_never

from paddler_trio.errors import WireError
from paddler_trio.language.embedding_documents import form_of, prepare_documents
from paddler_trio.language.embedding_results import EmbeddingRefusedError
from paddler_trio.language.model_language import Language
from paddler_trio.language.prompting import prompt_of
from paddler_trio.language.refusal import NotHere, Refusal
from paddler_trio.processes.preparation.model_answers import UnanswerableError, answer_to
from paddler_trio.processes.preparation.preparation_messages import (
    Answered,
    Job,
    Prepared,
    PreparedEmbedding,
    PreparedGeneration,
    Refused,
    refused,
)
from paddler_trio.wire.codec import loads
from paddler_trio.wire.engine.pipe_codec import encode
from paddler_trio.wire.json_limits import JsonLimitError, check_count
from paddler_trio.wire.paddler.messages import AgentRequest, AgentRequestBody, parse_agent_message
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
)
from paddler_trio.wire.trio.request_frame import RequestFrame
from paddler_trio.wire.trio.trio_link import (
    MAX_ANSWER_BYTES,
    TAG,
    Answer,
    Ask,
    Extension,
    Start,
    UnknownExtension,
    parse_extension,
    render_extension,
)
from paddler_trio.wire.trio.work import Embed, Generate, Rank, Work


def prepare(job: Job, language: Language) -> Prepared:
    """Do one job, within the limits of the process that calls it."""
    try:
        match job.frame.kind:
            case "generation":
                return _generation(job, language)
            case "embedding":
                return _embedding(job, language)
            case "question":
                return _question(job, language)
            case other:
                assert_never(other)
    except WireError as error:
        return refused(job, 400, f"malformed request: {error}")
    except Refusal as refusal:
        return Refused(refusal.result, is_elsewhere=isinstance(refusal, NotHere))
    except EmbeddingRefusedError as error:
        return refused(job, 400, str(error))


def _generation(job: Job, language: Language) -> Prepared:
    work, seed, sampled = _parsed(job.frame)
    if not isinstance(
        work, Generate | ContinueFromRawPromptParams | ContinueFromConversationHistoryParams
    ):
        raise WireError(f"{job.frame.tag} is no generation @ $.request")
    prompted = prompt_of(
        work,
        language,
        key=job.key,
        seed=seed,
        sampled=sampled,
        isolated=bool(job.frame.isolated),
        senses=job.ready.senses,
        slot_cells=job.ready.cells,
    )
    start = prompted.start
    return PreparedGeneration(encode(start), prompted.output, len(start.tokens))


def _embedding(job: Job, language: Language) -> Prepared:
    work, _, _ = _parsed(job.frame)
    shape = job.ready.embedding
    assert shape is not None, "an agent prepares embeddings if its engine can embed"
    if not isinstance(work, Embed | Rank | GenerateEmbeddingBatchParams):
        raise WireError(f"{job.frame.tag} embeds nothing @ $.request")
    form = form_of(work, shape, language.parameters.pooling_type)
    documents = prepare_documents(work, language.vocabulary, shape.max_tokens)
    return PreparedEmbedding(tuple(documents), form)


def _question(job: Job, language: Language) -> Prepared:
    ask = _extension(job.frame.text)
    assert isinstance(ask, Ask), "it has the head of one"
    try:
        answer = answer_to(ask.question, language, job.ready)
    except UnanswerableError as error:
        return refused(job, error.code, str(error))
    frame = render_extension(Answer(ask.id, answer, None, 200))
    if len(frame) > MAX_ANSWER_BYTES:
        problem = f"the answer would have {len(frame)} bytes, the limit is {MAX_ANSWER_BYTES}"
        return refused(job, 413, f"{problem}: send less in one request")
    try:
        check_count(frame)  # the balancer counts it, too, and closes the link over it
    except JsonLimitError as error:
        return refused(job, 413, f"the answer would be {error}")
    return Answered(frame)


def _parsed(frame: RequestFrame) -> tuple[Work | AgentRequestBody, int, tuple[int, ...]]:
    """Return the request, the seed of its sampling, and the tokens sampled before; WireError."""
    if frame.is_paddlers:
        message = parse_agent_message(frame.text)
        assert isinstance(message, AgentRequest), "it has the head of one"
        return message.request, secrets.randbits(32), ()
    start = _extension(frame.text)
    assert isinstance(start, Start), "it has the head of one"
    return start.request, start.seed, start.tokens


def _extension(text: str) -> Extension | UnknownExtension:
    frame = loads(text)
    if not isinstance(frame, dict) or frame.keys() != {TAG}:
        raise WireError("a Trio frame has one key @ $")
    return parse_extension(frame[TAG])
