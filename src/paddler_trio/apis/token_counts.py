"""How many tokens a conversation has for the model that is served."""

from __future__ import annotations

from paddler_trio.apis.backend import Backend
from paddler_trio.apis.questions import rendered
from paddler_trio.wire.trio.work import ConversationPrompt


async def count_tokens(backend: Backend, conversation: ConversationPrompt) -> int:
    """Of the rendered prompt.

    Errors:
      ApiError: 400 the template refuses it, 503 no agent serves a model, 504 none answered in time.
    """
    num_tokens = (await rendered(backend, conversation))["num_tokens"]
    assert isinstance(num_tokens, int)
    return num_tokens
