"""The reader for the tool calls of one answer, with ids that every agent would give them."""

from __future__ import annotations

import hashlib

import attrs

from paddler_trio.language.answers.model_format import ModelFormat
from paddler_trio.language.answers.tool_calls import ToolCallReader
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.tool_schemas import ToolSchemaError
from paddler_trio.wire.trio.work import ConversationPrompt, Prompt

_ID_CHARS = 24


def call_reader(prompt: Prompt, form: ModelFormat, *, seed: int) -> ToolCallReader | None:
    """A reader for calls written in ``form``; None if they stay unread.

    Args:
      seed: of the request, the same on every agent that works on it: a call keeps its id when the
        answer continues on another agent.

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
            new_id=_CallIds(seed, None if calls is None else calls.id_chars),
            syntax=None if calls is None else calls.syntax,
            keeps_model_ids=True,
        )
    except ToolSchemaError as error:
        raise Refusal("ToolSchemaInvalid", str(error)) from error


@attrs.define
class _CallIds:
    """Ids in the manner of OpenAI's, or of ``length`` characters."""

    seed: int
    length: int | None
    _count: int = attrs.field(default=0, init=False)

    def __call__(self) -> str:
        digest = hashlib.sha256(f"{self.seed}/{self._count}".encode()).hexdigest()
        self._count += 1
        return f"call_{digest[:_ID_CHARS]}" if self.length is None else digest[: self.length]
