"""Questions that a balancer asks an agent, and that take no slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from paddler_trio.wire.scalars import Int32
from paddler_trio.wire.tags import external_tag, structs
from paddler_trio.wire.trio.work import Prompt


@attrs.frozen(kw_only=True)
class Tokenize:
    """Answered by ``{"tokens": [...]}``, with pieces ``{"tokens": [{"id", "piece"}]}``; a piece
    that is only a part of a character is a list of its bytes."""

    text: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


@attrs.frozen(kw_only=True)
class Detokenize:
    """Answered by ``{"text": "..."}``, with pieces by ``{"pieces": [...]}``, one for each token."""

    tokens: tuple[Int32, ...]
    with_pieces: bool = False


@attrs.frozen(kw_only=True)
class RenderPrompt:
    """Answered by ``{"prompt": "...", "num_tokens": N}``: what the engine would be given.

    An image stands there as ``<__media__>`` and counts as one token: the engine alone computes what
    it becomes.
    """

    prompt: Prompt


@attrs.frozen(kw_only=True)
class PreviewTemplate:
    """Answered as :class:`RenderPrompt` is, for a conversation and with this chat template in the
    place of the model's; None: with the one in force.

    What the template refuses is an answer too: ``{"problem": "...", "line": N}``, where ``line`` is
    null if the problem is at none.
    """

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    thinking: bool | None = None
    chat_template: str | None = None


@attrs.frozen(kw_only=True)
class DescribeModel:
    """Answered by ``{"name", "size_bytes", "n_params", "n_vocab", "n_ctx", "n_ctx_train",
    "n_embd", "vocab_type", "bos_token", "eos_token", "end_tokens", "chat_template", "metadata",
    "can_embed", "can_rank", "can_see", "can_hear", "has_thinking", "has_tools"}``: ``n_ctx`` is the
    space of one slot, ``vocab_type`` llama.cpp's number of it, ``end_tokens`` are numbers, others
    texts; ``metadata`` the short ones that the file says of itself."""


Question: TypeAlias = Tokenize | Detokenize | RenderPrompt | PreviewTemplate | DescribeModel
external_tag(Question, *structs(Question))
