"""Normalise what programs write at the beginning of a prompt, anew with each request, and mean
nothing by.

A prefix is found by its tokens: a stamp in the first line makes every request compute its whole
prompt. Here is the one table of such noise; it is looked for in the texts of the system that stand
before everything else, and nowhere else. ``--no-normalise-prompts`` leaves prompts as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from paddler_trio.wire.trio.work import ConversationPrompt, Generate, Prompt, Work

MAX_CHARS = 65_536
"""Of one text, from its beginning, that are looked at."""


@attrs.frozen
class Noise:
    """Write what ``pattern`` finds as ``instead``, a template of :mod:`re`."""

    name: str
    pattern: re.Pattern[str]
    instead: str


NOISE = (
    Noise(
        "The billing line of Claude Code, with a stamp of each request: it is for the provider.",
        re.compile(r"\A\s{0,8}x-anthropic-billing-header:[^\n]*\n?"),
        "",
    ),
    Noise(
        "The seconds of the present time, on a line that says so: minutes stay.",
        re.compile(
            r"(?im)^([\W_]{0,8}(?:the )?(?:current|present|today's|local|utc)(?![a-z])"
            r"[a-z /_-]{0,30}[:=][^\n:]{0,40}(?<!\d)\d{1,2}:\d\d):\d\d(?:[.,]\d{1,9})?(?!\d)"
        ),
        r"\1:00",
    ),
)


def without_noise(text: str) -> str:
    """``text`` with what the table finds written as the table has it."""
    looked_at, rest = text[:MAX_CHARS], text[MAX_CHARS:]
    for noise in NOISE:
        looked_at = noise.pattern.sub(noise.instead, looked_at)
    return looked_at + rest


def normalised(prompt: Prompt) -> Prompt:
    """Return a conversation without noise in the system's texts at its beginning; others as they
    are."""
    if not isinstance(prompt, ConversationPrompt):
        return prompt
    messages: list[Mapping[str, object]] = []
    for index, message in enumerate(prompt.messages):
        if message.get("role") != "system":
            messages += prompt.messages[index:]
            break
        content = _content(message.get("content"))
        if content or not message.get("content"):
            messages.append({**message, "content": content})
    if tuple(messages) == prompt.messages:
        return prompt
    return attrs.evolve(prompt, messages=tuple(messages))


def _content(content: object) -> object:
    if isinstance(content, str):
        return without_noise(content)
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": without_noise(part["text"])}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]


def normalised_work(work: Work) -> Work:
    """Normalise what a request asks for."""
    if not isinstance(work, Generate):
        return work
    prompt = normalised(work.prompt)
    return work if prompt is work.prompt else attrs.evolve(work, prompt=prompt)
