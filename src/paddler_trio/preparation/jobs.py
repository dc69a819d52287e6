"""What a worker does with one request: read it, then everything language has to say of it."""

from __future__ import annotations

import secrets
from typing import assert_never

from paddler_trio.errors import WireError
from paddler_trio.language.embedding_documents import (
    EmbeddingRefusedError,
    form_of,
    prepare_documents,
)
from paddler_trio.language.model_language import Language
from paddler_trio.language.prompting import prompt_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.preparation.messages import (
    Answered,
    Job,
    Prepared,
    PreparedEmbedding,
    PreparedGeneration,
    Refused,
)
from paddler_trio.preparation.questions import UnanswerableError, answer_to
from paddler_trio.wire.codec import loads, structure
from paddler_trio.wire.engine.engine_pipe import StartSequence
from paddler_trio.wire.engine.pipe_codec import encode
from paddler_trio.wire.paddler.generation import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    GenerateEmbeddingBatchParams,
)
from paddler_trio.wire.paddler.messages import AgentRequest, AgentRequestBody, parse_agent_message
from paddler_trio.wire.trio.generate import Embed, Generate, Rank, Work
from paddler_trio.wire.trio.request_frames import RequestFrame
from paddler_trio.wire.trio.trio_link import (
    TAG,
    Answer,
    Ask,
    Start,
    parse_extension,
    render_extension,
)


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
        return Refused(refusal.result)
    except EmbeddingRefusedError as error:
        return refused(job, 400, str(error))


def refused(job: Job, code: int, problem: str) -> Prepared:
    """The ending of a request that cannot be prepared; ``code`` mirrors HTTP status numbers."""
    return refused_frame(job.frame, code, problem)


def refused_frame(frame: RequestFrame, code: int, problem: str) -> Prepared:
    """As :func:`refused`, in the words of the request's own protocol."""
    if frame.kind == "question":
        return Answered(render_extension(Answer(frame.id, None, problem, code)))
    if frame.kind == "embedding":
        return Refused({"Error": problem})
    if frame.is_extended and code < 500:
        return Refused({"BadRequest": {"field": "prompt", "message": problem}})
    return Refused({"SamplerError": problem})


def _generation(job: Job, language: Language) -> Prepared:
    work, seed, sampled = _work_of(job.frame)
    if not isinstance(
        work, Generate | ContinueFromRawPromptParams | ContinueFromConversationHistoryParams
    ):
        raise WireError(f"{job.frame.tag} is no generation @ $.request")
    prompt = prompt_of(
        work,
        language,
        seed=seed,
        sampled=sampled,
        sees_images=job.ready.sees_images,
        slot_cells=job.ready.cells,
    )
    start = StartSequence(
        key=job.key,
        tokens=prompt.tokens,
        images=prompt.images,
        sampled=list(sampled),
        max_tokens=prompt.max_tokens,
        sampling=prompt.sampling,
        grammar=prompt.grammar,
        reasoning=prompt.reasoning,
        logprobs=prompt.logprobs,
        reuse_prefix=prompt.reuse_prefix,
        salt=prompt.salt,
        isolated=bool(job.frame.isolated),
    )
    return PreparedGeneration(encode(start), prompt.output, len(prompt.tokens))


def _embedding(job: Job, language: Language) -> Prepared:
    work, _, _ = _work_of(job.frame)
    shape = job.ready.embedding
    assert shape is not None, "the agent asks for embeddings where the engine can embed"
    if not isinstance(work, Embed | Rank | GenerateEmbeddingBatchParams):
        raise WireError(f"{job.frame.tag} embeds nothing @ $.request")
    form = form_of(work, shape, language.parameters.pooling_type)
    documents = prepare_documents(work, language.vocabulary, shape.max_tokens)
    return PreparedEmbedding(tuple(documents), form)


def _question(job: Job, language: Language) -> Prepared:
    ask = parse_extension(_object(loads(job.frame.text))[TAG])
    assert isinstance(ask, Ask), "its head says so"
    try:
        answer = answer_to(ask.question, language, job.ready)
    except UnanswerableError as error:
        return refused(job, error.code, str(error))
    return Answered(render_extension(Answer(ask.id, answer, None, 200)))


def _work_of(frame: RequestFrame) -> tuple[object, int, tuple[int, ...]]:
    """The request as a value, the seed of its draws, and what was drawn before; WireError."""
    if frame.is_paddlers:
        message = parse_agent_message(frame.text)
        assert isinstance(message, AgentRequest), "its head says so"
        return message.request, secrets.randbits(32), ()
    start = parse_extension(_object(loads(frame.text))[TAG])
    assert isinstance(start, Start), "its head says so"
    if frame.is_extended:
        return structure(start.request, Work), start.seed, start.tokens
    return structure(start.request, AgentRequestBody), start.seed, start.tokens


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict) or value.keys() != {TAG}:
        raise WireError("a Trio frame has one key @ $")
    return value
