"""Questions that only a loaded model can answer: tokens of a text, text of tokens, its metadata.

Any agent of ours that serves the deployment may answer; questions take no slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from paddler_trio.balancer.agents.ask_model import ask_model, held_by
from paddler_trio.balancer.apis.api_errors import ApiError, invalid
from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend
from paddler_trio.balancer.apis.prompt_noise import normalised
from paddler_trio.balancer.apis.prompts import is_ids
from paddler_trio.net.server.streaming import while_connected
from paddler_trio.nursery_tree.agent_questions import QuestionRefusedError
from paddler_trio.wire.trio.model_questions import (
    DescribeModel,
    Detokenize,
    Question,
    RenderPrompt,
    Tokenize,
)
from paddler_trio.wire.trio.work import ConversationPrompt, Generate, Prompt


async def ask(
    backend: Backend, question: Question, exchange: ApiExchange | None = None
) -> Mapping[str, object]:
    """Return the answer of a serving agent; with an ``exchange``, only as long as its client waits.

    Errors:
      ApiError: the agent refuses the question.
      HttpProblem: no agent can be asked, or none answers in time.
    """
    try:
        if exchange is None:
            answer = await ask_model(
                backend.dispatcher, question, deployment=backend.deployment.name
            )
        else:
            asking = partial(
                ask_model,
                backend.dispatcher,
                question,
                client=exchange.client,
                deployment=backend.deployment.name,
            )
            answer = await while_connected(exchange.http, asking)
            exchange.hold(held_by(answer), backend.limits)
    except QuestionRefusedError as refused:
        raise ApiError(refused.code, refused.problem) from refused
    assert isinstance(answer, Mapping), "agents answer with objects"
    return answer


async def tokens_of(
    backend: Backend, question: Tokenize, exchange: ApiExchange | None = None
) -> list[int]:
    tokens = (await ask(backend, question, exchange))["tokens"]
    assert isinstance(tokens, list)
    return tokens


async def text_of(backend: Backend, tokens: Sequence[int], exchange: ApiExchange) -> str:
    text = (await ask(backend, Detokenize(tokens=tuple(tokens)), exchange))["text"]
    assert isinstance(text, str)
    return text


async def rendered(backend: Backend, exchange: ApiExchange, prompt: Prompt) -> Mapping[str, object]:
    """Return what the engine would be given for ``prompt``: its text ``prompt``, and
    ``num_tokens``."""
    if backend.settings.normalises_prompts:
        prompt = normalised(prompt)
    return await ask(backend, RenderPrompt(prompt=prompt), exchange)


async def count_tokens(
    backend: Backend, exchange: ApiExchange, conversation: ConversationPrompt
) -> int:
    """Count the tokens of the rendered prompt.

    Errors:
      ApiError: 400 the template refuses it, 503 no agent serves a model, 504 none answered in time.
    """
    num_tokens = (await rendered(backend, exchange, conversation))["num_tokens"]
    assert isinstance(num_tokens, int)
    return num_tokens


async def end_tokens(backend: Backend, exchange: ApiExchange, generate: Generate) -> list[int]:
    """Return the tokens that ``ignore_eos`` keeps from being sampled; empty without it, or if the
    agent does not report them."""
    if not generate.sampling.ignore_eos:
        return []
    tokens = (await ask(backend, DescribeModel(), exchange)).get("end_tokens", [])
    assert isinstance(tokens, list)
    return tokens


async def token_ids(
    backend: Backend, items: Sequence[int | str], exchange: ApiExchange, *, param: str
) -> tuple[int, ...]:
    """Token ids and texts in one sequence, as llama-server takes them, as ids only; as long as the
    client waits."""
    if not items:
        raise invalid(f"{param} is empty", param)
    if is_ids(items):
        return tuple(items)
    tokens: list[int] = []
    for index, item in enumerate(items):
        if isinstance(item, int):
            tokens.append(item)
        else:
            question = Tokenize(text=item, add_special=index == 0)
            tokens += await tokens_of(backend, question, exchange)
    return tuple(tokens)
