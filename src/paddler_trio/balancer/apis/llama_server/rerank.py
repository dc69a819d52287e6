"""``/v1/rerank``: documents by how well they fit a query, with Jina's or TEI's body.

``documents`` asks for the first, ``texts`` for the second. Scores are the model's own, higher is
better; the documents go to the agents in several requests, like the inputs of embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import attrs

from paddler_trio.balancer.apis.answers.answer import Step
from paddler_trio.balancer.apis.answers.run_requests import gather_on_one_revision
from paddler_trio.balancer.apis.api_errors import ApiError, invalid, renamed
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, model_name
from paddler_trio.balancer.apis.fields import (
    Field,
    Record,
    accepted,
    list_in,
    record,
    required,
    text_in,
)
from paddler_trio.balancer.apis.generation_fields import (
    LABEL,
    MODEL,
    TIMEOUT,
)
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.openai.embeddings import split
from paddler_trio.balancer.apis.shapes import Either, Flag, Integer, Json, ListOf, Text
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.trio.work import Rank

SCORE_BYTES: Final = 192
"""What a score and its place take."""


@lru_cache(maxsize=8)
def rerank_record(limits: ApiLimits) -> Record:
    """Return the body of ``/v1/rerank``."""
    wrapped = record("ranked text", required("text", Text(), "The document."))
    documents = ListOf(Either((Text(), wrapped)), 1, limits.max_prompts, "max_prompts")
    return record(
        "RerankRequest",
        MODEL,
        required("query", Text(), "What the documents are for."),
        Field("documents", documents, "Texts, or objects with text."),
        Field("texts", documents, "As documents; answered in TEI's shape."),
        Field("top_n", Integer(0, clamps=True), "Tell only so many of the best; 0 for none."),
        Field("return_documents", Flag(), "Results carry their documents."),
        Field("return_text", Flag(), "With texts: results carry them."),
        TIMEOUT,
        accepted("user", LABEL, "The key's turns go round its users."),
        note="Give documents or texts. Unknown fields are ignored and reported.",
    )


@attrs.frozen(kw_only=True)
class RerankRequest:
    """``is_tei``: the answer is a bare list."""

    model: str | None
    query: str
    documents: tuple[str, ...]
    top_n: int | None
    with_documents: bool
    is_tei: bool


def read_rerank(body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT) -> RerankRequest:
    """Read the request; ApiError 400 with the path of the field that is wrong."""
    values = rerank_record(limits).read(body, "", ignored)
    if ("documents" in values) == ("texts" in values):
        raise invalid("give documents, or texts, and not both", "documents")
    is_tei = "texts" in values
    given = list_in(values, "texts" if is_tei else "documents")
    top_n = values.get("top_n")
    return RerankRequest(
        model=text_in(values, "model"),
        query=str(values["query"]),
        documents=tuple(str(each["text"] if isinstance(each, Mapping) else each) for each in given),
        top_n=top_n if isinstance(top_n, int) else None,
        with_documents=values.get("return_text" if is_tei else "return_documents") is True,
        is_tei=is_tei,
    )


@attrs.define
class Ranking:
    """The scores as they come; ``starts`` are the places of the first document of each request."""

    request: RerankRequest
    starts: Sequence[int]
    usage: dict[int, int] = attrs.field(factory=dict)
    """Tokens of each request, by its number: one that is computed anew is counted once."""
    scores: dict[int, float] = attrs.field(factory=dict)

    def take(self, step: Step) -> int:
        """Return by how many bytes the scores have grown. ApiError 400 for a document that is too
        long."""
        start, before = self.starts[step.choice], len(self.scores)
        for result in step.results:
            match result:
                case {"Rank": {"index": int(index), "score": float() | int() as score}}:
                    self.scores[start + index] = float(score)
                case {"Usage": {"prompt_tokens": int(tokens)}}:
                    self.usage[step.choice] = tokens
                case {"DocumentRefused": {"problem": str(why), "source_document_id": str(name)}}:
                    place = f"documents[{start + int(name)}]"
                    raise invalid(renamed(why, f"documents[{name}]", place), place)
                case {"DocumentExceedsBatchSize": dict(excess)}:
                    raise _too_large(start, excess)
        return SCORE_BYTES * (len(self.scores) - before)

    def body(self, model: str) -> object:
        """Return the best first; ApiError 500 if one has no score."""
        for place in range(len(self.request.documents)):
            if place not in self.scores:
                raise ApiError(500, f"documents[{place}] was not ranked", code="no_ranking")
        order = sorted(self.scores, key=lambda place: (-self.scores[place], place))
        results = [self._result(place) for place in order[: self.request.top_n]]
        if self.request.is_tei:
            return results
        num_tokens = sum(self.usage.values())
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"model": model, "object": "list", "usage": usage, "results": results}

    def _result(self, place: int) -> Json:
        document = self.request.documents[place]
        score = self.scores[place]
        if self.request.is_tei:
            text: Json = {"text": document} if self.request.with_documents else {}
            return {"index": place, "score": score, **text}
        extra: Json = {"document": {"text": document}} if self.request.with_documents else {}
        return {"index": place, "relevance_score": score, **extra}


def _too_large(start: int, excess: Mapping[str, object]) -> ApiError:
    place = start + int(str(excess["source_document_id"]))
    return ApiError(
        400,
        f"documents[{place}] is too large: with the query it has {excess['document_tokens']} "
        f"tokens, one batch holds {excess['n_batch']}; shorten it or raise n_batch",
        param=f"documents[{place}]",
        code="context_length_exceeded",
    )


async def rerank(backend: Backend, exchange: ApiExchange) -> None:
    request = await exchange.read(backend.limits, read_rerank)
    backend = backend.routed(exchange, request.model)
    batch_size = _must_rank(backend)
    agents = len(backend.agents)
    parts, starts = split(request.documents, agents=agents, batch_size=batch_size)
    works = [Rank(query=request.query, documents=part) for part in parts]
    rankings: list[Ranking] = []

    def begin() -> Callable[[Step], int]:
        rankings[:] = [Ranking(request, starts)]
        return rankings[0].take

    try:
        await gather_on_one_revision(backend, exchange, works, begin)
    except ApiError as error:
        if error.code == "embedding_failed" and "pooling_type" in error.message:
            raise _cannot_rank(error.message) from error
        raise
    model = model_name(backend, exchange, request.model)
    await exchange.send_json(200, rankings[0].body(model))


def _must_rank(backend: Backend) -> int:
    """Return the largest part that may go to one agent; ApiError 501 if the cluster ranks
    nothing."""
    state = backend.deployment.state
    if state is None:
        return 256  # nothing is served yet: the request waits like any other
    parameters = state.inference_parameters
    if not parameters.enable_embeddings:
        raise _cannot_rank("embeddings are not enabled in the cluster's inference parameters")
    if parameters.pooling_type.value not in (PoolingType.RANK, PoolingType.UNSPECIFIED):
        raise _cannot_rank(f"pooling_type is {parameters.pooling_type.value}")
    return max(1, parameters.embedding_batch_size)


def _cannot_rank(reason: str) -> ApiError:
    return ApiError(
        501,
        f"documents cannot be ranked: {reason}; serve a reranking model with `paddler-trio model "
        "set MODEL --enable-embeddings --pooling-type Rank`",
        code="rank_disabled",
    )
