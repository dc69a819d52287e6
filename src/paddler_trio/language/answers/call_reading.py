"""Who reads the tool calls of one answer, with ids that another agent would give them too."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.tool_calls import ToolCallReader
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.tool_schemas import ToolSchemaError
from paddler_trio.wire.trio.generate import ConversationPrompt, Prompt

_ID_CHARS = 24


def call_reader(prompt: Prompt, form: ModelFormat, *, seed: int) -> ToolCallReader | None:
    """A reader for calls written in ``form``; None if nobody shall read them.

    Args:
      seed: of the request, the same on every agent that works on it. A client that was told the id
        of a call is told the same one when the answer goes on elsewhere.

    Raises:
      Refusal: a tool is not usable.
    """
    if not isinstance(prompt, ConversationPrompt) or prompt.raw_tool_calls or not prompt.tools:
        return None
    if prompt.tool_choice == "none":
        return None
    calls = form.calls
    try:
        return ToolCallReader(
            prompt.tools,
            new_id=_ids(seed, None if calls is None else calls.id_chars),
            syntax=None if calls is None else calls.syntax,
            keeps_model_ids=True,
        )
    except ToolSchemaError as error:
        raise Refusal("ToolSchemaInvalid", str(error)) from error


def _ids(seed: int, length: int | None) -> Callable[[], str]:
    """Ids in the manner of OpenAI's, or of that many letters and digits."""
    numbers = itertools.count()

    def new_id() -> str:
        digest = hashlib.sha256(f"{seed}/{next(numbers)}".encode()).hexdigest()
        return f"call_{digest[:_ID_CHARS]}" if length is None else digest[:length]

    return new_id
