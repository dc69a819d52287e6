"""Results as they are on the wire, read no further than their tag."""

from __future__ import annotations

from paddler_trio.errors import WireError
from paddler_trio.wire.paddler.results import (
    ALL_EMBEDDING_TAGS,
    ALL_GENERATION_TAGS,
    ENDING_EMBEDDING_TAGS,
    ENDING_GENERATION_TAGS,
    EXTENDED_EMBEDDING_TAGS,
    EXTENDED_ENDING_TAGS,
    EXTENDED_GENERATION_TAGS,
    TOKEN_TAGS,
)


def result_tag(raw: object) -> str:
    """Return the variant of a raw externally tagged value: its only key, or the bare string
    itself."""
    if type(raw) is dict and len(raw) == 1:
        (tag,) = raw
        return str(tag)
    if type(raw) is str:
        return raw
    raise WireError("expected a result: an object with one key, or a string")


def is_text(raw: object) -> bool:
    """Return whether this is a generated piece of some class, as nearly all results are: it ends
    nothing."""
    return type(raw) is dict and len(raw) == 1 and next(iter(raw)) in TOKEN_TAGS


def ends_stream(raw_response: object, *, extended: bool = False) -> bool:
    """Return whether a raw ``Response.response`` is the last its request will get.

    Args:
      raw_response: with its outer tag, ``{"GeneratedToken": ...}`` or ``{"Embedding": ...}``.
      extended: the sender is ours, so that ``EXTENDED_GENERATION_TAGS`` and
        ``EXTENDED_EMBEDDING_TAGS`` may occur.

    Raises:
      WireError: any other response, or an unknown result.
    """
    if type(raw_response) is dict and len(raw_response) == 1:
        if "GeneratedToken" in raw_response:
            tag = result_tag(raw_response["GeneratedToken"])
            if tag in TOKEN_TAGS:
                return False
            if tag in ALL_GENERATION_TAGS:
                return tag in ENDING_GENERATION_TAGS
            if extended and tag in EXTENDED_GENERATION_TAGS:
                return tag in EXTENDED_ENDING_TAGS
            raise WireError(f"unknown variant {tag[:80]!r} @ $.GeneratedToken")
        if "Embedding" in raw_response:
            tag = result_tag(raw_response["Embedding"])
            if tag in ALL_EMBEDDING_TAGS:
                return tag in ENDING_EMBEDDING_TAGS
            if extended and tag in EXTENDED_EMBEDDING_TAGS:
                return False
            raise WireError(f"unknown variant {tag[:80]!r} @ $.Embedding")
    raise WireError("expected a GeneratedToken or an Embedding response")
