"""The forms a prompt may have: a text, token ids, both mixed, an object, or several of these.

llama-server's rules: a list of texts, or of lists, is several prompts; a list that holds a number
is one prompt in which texts are tokenised in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from paddler_trio.balancer.apis.api_errors import invalid, unsupported
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.shapes import Anything, shown

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MAX_INT32 = 2**31 - 1
MAX_TEXTS_AMONG_IDS = 1024
"""Of one request: an agent is asked for the tokens of each."""

Prompt: TypeAlias = "str | list[int | str]"
"""A text, or token ids and texts in one sequence."""


@attrs.frozen
class PromptShape(Anything):
    """Name what ``/v1/completions`` takes as ``prompt`` and ``/v1/embeddings`` as ``input``."""

    def schema(self) -> dict[str, object]:
        text: dict[str, object] = {"type": "string"}
        token = {"type": "integer", "minimum": 0, "maximum": MAX_INT32}
        mixed = {"type": "array", "minItems": 1, "items": {"anyOf": [token, text]}}
        part = _object({"type": {"const": "text"}, "text": text})
        parts = {"type": "array", "minItems": 1, "items": part}
        objects = [_object({"prompt_string": text}), _object({"content": parts})]
        several = {"type": "array", "minItems": 1, "items": {"anyOf": [text, mixed, *objects]}}
        return {"anyOf": [text, mixed, *objects, several]}


def _object(properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@attrs.frozen
class Prompts:
    """``is_several``: more than one was given, and as many are answered in a list."""

    prompts: tuple[Prompt, ...]
    is_several: bool


def read_prompts(value: object, limits: ApiLimits, *, param: str = "prompt") -> Prompts:
    """Return the prompts of a request; inputs of an embeddings request have the same forms.

    Errors:
      ApiError: 400 with the path of what is no prompt.
    """
    if isinstance(value, list) and not any(_is_number(item) for item in value):
        if not value:
            raise invalid(f"{param} is an empty list, must hold at least one prompt", param)
        if len(value) > limits.max_prompts:
            raise invalid(
                f"{param} has {len(value)} entries, the limit max_prompts is {limits.max_prompts}",
                param,
            )
        each = tuple(_prompt(item, f"{param}[{index}]") for index, item in enumerate(value))
        read = Prompts(each, is_several=len(each) > 1)
    else:
        read = Prompts((_prompt(value, param),), is_several=False)
    num_texts = sum(
        isinstance(item, str)
        for prompt in read.prompts
        if not isinstance(prompt, str)
        for item in prompt
    )
    if num_texts > MAX_TEXTS_AMONG_IDS:
        raise invalid(
            f"{param} has {num_texts} texts in lists of token ids, the limit is "
            f"{MAX_TEXTS_AMONG_IDS}: join them, or send each as a prompt",
            param,
        )
    return read


def is_ids(prompt: Sequence[int | str]) -> TypeIs[Sequence[int]]:
    """Return whether it is token ids alone; quick for a million of them."""
    return str not in {*map(type, prompt)}


def _prompt(value: object, path: str) -> Prompt:
    match value:
        case str():
            return value
        case list() if value:
            return _sequence(value, path)
        case {"prompt_string": str(text), **more} if not more or more == {"multimodal_data": []}:
            return text
        case {"content": list(parts), **more} if not more and parts:
            return "".join(_text_part(part, f"{path}.content[{i}]") for i, part in enumerate(parts))
        case {"multimodal_data": _}:
            raise unsupported(f"{path}.multimodal_data", "send images to /v1/chat/completions")
    raise invalid(
        f"{path} is {shown(value)}, must be a string, or a list of token ids that is not empty",
        path,
        code="invalid_type",
    )


def _text_part(part: object, path: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise invalid(f"{path} is {shown(part)}, must be a text part", path)


def _sequence(value: Sequence[object], path: str) -> list[int | str]:
    items: list[int | str] = []
    for index, item in enumerate(value):
        is_token = _is_number(item) and isinstance(item, int) and 0 <= item <= MAX_INT32
        if isinstance(item, str) or (isinstance(item, int) and is_token):
            items.append(item)
        else:
            where = f"{path}[{index}]"
            raise invalid(f"{where} is {shown(item)}, must be a token id or a string", where)
    return items


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
