"""Results as they are on the wire, read no further than their tag."""

from __future__ import annotations

import json
import re
from typing import Final

from paddler_trio.errors import WireError
from paddler_trio.wire.json_limits import UNCOUNTED_BYTES, JsonLimitError, check_count
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


_ID_IN_HEAD: Final = re.compile(
    rb'\s*\{\s*"Re(?:quest|sponse)"\s*:\s*\{\s*(?:"generated_by"\s*:\s*(?:null|"[^"\\]{0,256}")\s*,\s*)?'
    rb'"(?:request_)?id"\s*:\s*("[^"\\]{1,256}")'
)


def recover_request_id(text: str | bytes) -> str | None:
    """Return the id of a frame that does not parse, for the answer to it; else ``None``.

    Takes what the strict readers refuse, as long as it is JSON at all; only a non-empty id that
    can be written back counts. A frame that is over the limits of JSON is not decoded for it: the
    id counts where every peer writes it, at the beginning.
    """
    if len(text) > UNCOUNTED_BYTES:
        whole = text.encode(errors="replace") if isinstance(text, str) else text
        try:
            check_count(whole)
        except JsonLimitError:
            head = _ID_IN_HEAD.match(whole)
            text = b'{"Request":{"id":%b}}' % (b"null" if head is None else head[1])
    try:
        frame: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(frame, dict):
        return None
    for tag, field in (("Request", "id"), ("Response", "request_id")):
        envelope = frame.get(tag)
        if isinstance(envelope, dict):
            request_id = envelope.get(field)
            if isinstance(request_id, str) and request_id and _is_unicode(request_id):
                return request_id
    return None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
