"""Decide which requests that take no slot may be sent to a server a second time, when it is not
known whether one has worked on them: RFC 9110, 9.2.2, forbids a proxy all others."""

from __future__ import annotations

from typing import Final

_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})
_QUESTIONS: Final = frozenset(
    {
        b"/tokenize",
        b"/detokenize",
        b"/apply-template",
        b"/v1/messages/count_tokens",
        b"/api/show",
    }
)
"""Questions of llama-server, vLLM and Ollama: a ``POST`` that changes nothing."""


def may_be_repeated(method: bytes, target: bytes) -> bool:
    """Return whether a request may be sent again; ``target`` is as it stands in the request
    line."""
    if method in _IDEMPOTENT:
        return True
    return method == b"POST" and target.partition(b"?")[0] in _QUESTIONS
