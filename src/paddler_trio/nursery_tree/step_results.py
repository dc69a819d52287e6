"""The results of an agent's step for a request, and who sends them to the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import attrs

FORWARDED: Final = "Forwarded"
"""The family of what a server answers: nothing of it is read here."""
RawResult: TypeAlias = "Mapping[str, object] | str"
"""A generation or embedding result as it came off the wire, e.g. ``{"ContentToken": "hi"}``."""


@attrs.frozen
class Results:
    """All that one step of an agent produced for this request, in order."""

    generated_by: str | None
    family: str
    """``GeneratedToken`` or ``Embedding``: the tag around each result."""
    results: list[RawResult]
    tokens: Sequence[int] = ()
    """The tokens sampled in this step; empty if the agent does not report them."""
    num_tokens: int = 0
    """Tokens or embeddings: as many as are reported, or else as there are results that end
    nothing."""


NOTHING: Final = Results(None, "GeneratedToken", [])
"""A step without results."""


class ResultSink(Protocol):
    """Sends results to the client in the step in which the agent delivers them."""

    def take(self, results: Results) -> bool:
        """Return whether it will send them, with the next ``flush``; if not, they go to the outbox,
        and so do all until the consumer has read it empty. Never raises."""
        ...

    def flush(self) -> None:
        """Send what was taken, without waiting; a second time there is nothing to send."""
        ...
