"""How many tokens a conversation would be, as the model that is served counts them."""

from __future__ import annotations

from paddler_trio.apis.questions import rendered
from paddler_trio.apis.surface import Surface
from paddler_trio.wire.trio.generate import ConversationPrompt


async def count_tokens(surface: Surface, conversation: ConversationPrompt) -> int:
    """Of the rendered prompt.

    Errors:
      ApiError: 400 the template refuses it, 503 nobody can tell, 504 nobody did in time.
    """
    told = (await rendered(surface, conversation))["num_tokens"]
    assert isinstance(told, int)
    return told
