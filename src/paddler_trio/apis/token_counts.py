"""How many tokens a conversation would be, as the model that is served counts them."""

from __future__ import annotations

from collections.abc import Mapping

from paddler_trio.apis.backend import Backend
from paddler_trio.apis.questions import rendered


async def count_tokens(backend: Backend, conversation: Mapping[str, object]) -> int:
    """``conversation`` is a ``ConversationPrompt`` as wire JSON.

    Errors:
      ApiError: 400 the template refuses it, 503 nobody can tell, 504 nobody did in time.
    """
    told = (await rendered(backend, {"Conversation": conversation}))["num_tokens"]
    assert isinstance(told, int)
    return told
