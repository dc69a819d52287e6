"""An answer that is an ending from the start: why a request cannot be prompted."""

from __future__ import annotations

from paddler_trio.errors import PaddlerError
from paddler_trio.language.answers.output_processor import RawResult


class Refusal(PaddlerError):  # noqa: N818  # an answer to give, not a fault of ours
    """This request ends before it began; ``result`` is its ending."""

    def __init__(self, tag: str, content: object) -> None:
        super().__init__(f"{tag}: {content}")
        self.result: RawResult = {tag: content}


class NotHere(Refusal):
    """Another agent may have what this request needs: it is about to serve another state."""


def bad_request(field: str, message: str) -> Refusal:
    """A field of an extended request is wrong; ``message`` has value, limit and remedy."""
    return Refusal("BadRequest", {"field": field, "message": message})
