"""Questions that only a loaded model can answer: tokens of a text, text of tokens, its figures.

Any agent of ours that serves the desired state may answer; they take no slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from paddler_trio.apis.api_errors import ApiError, invalid
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.prompts import is_ids
from paddler_trio.apis.surface import Surface
from paddler_trio.balancer.model_questions import ask_model
from paddler_trio.http.asgi import while_connected
from paddler_trio.nursery_tree.agent_connection import QuestionRefusedError
from paddler_trio.wire.trio.generate import (
    DescribeModel,
    Detokenize,
    Generate,
    Prompt,
    Question,
    RenderPrompt,
    Tokenize,
)


async def ask(
    surface: Surface, question: Question, exchange: Exchange | None = None
) -> Mapping[str, object]:
    """What a serving agent says; with an ``exchange`` only as long as its client waits.

    Errors:
      ApiError: the agent refuses the question.
      HttpProblem: nobody can be asked, or nobody answers in time.
    """
    try:
        if exchange is None:
            answer = await ask_model(surface.dispatcher, question)
        else:
            asking = partial(ask_model, surface.dispatcher, question, client=exchange.client)
            answer = await while_connected(exchange.receive, asking)
    except QuestionRefusedError as refused:
        raise ApiError(refused.code, refused.problem) from refused
    assert isinstance(answer, Mapping), "agents answer with objects"
    return answer


async def tokens_of(
    surface: Surface, text: str, *, add_special: bool, parse_special: bool = True
) -> list[int]:
    question = Tokenize(text=text, add_special=add_special, parse_special=parse_special)
    tokens = (await ask(surface, question))["tokens"]
    assert isinstance(tokens, list)
    return tokens


async def text_of(surface: Surface, tokens: Sequence[int]) -> str:
    text = (await ask(surface, Detokenize(tokens=tuple(tokens))))["text"]
    assert isinstance(text, str)
    return text


async def rendered(surface: Surface, prompt: Prompt) -> Mapping[str, object]:
    """What the engine would be given for ``prompt``: its text ``prompt``, and ``num_tokens``."""
    return await ask(surface, RenderPrompt(prompt=prompt))


async def end_tokens(surface: Surface, generate: Generate) -> list[int]:
    """The tokens that ``ignore_eos`` keeps from being drawn; empty where it is not asked for, or
    the agent does not tell."""
    if not generate.sampling.ignore_eos:
        return []
    told = (await ask(surface, DescribeModel())).get("end_tokens", [])
    assert isinstance(told, list)
    return told


async def token_ids(surface: Surface, items: Sequence[int | str], *, param: str) -> tuple[int, ...]:
    """Token ids and texts in one sequence, as llama-server takes them, as ids only."""
    if not items:
        raise invalid(f"{param} is empty", param)
    if is_ids(items):
        return tuple(items)
    tokens: list[int] = []
    for index, item in enumerate(items):
        if isinstance(item, int):
            tokens.append(item)
        else:
            tokens += await tokens_of(surface, item, add_special=index == 0)
    return tuple(tokens)
