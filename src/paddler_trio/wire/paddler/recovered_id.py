"""The id of a frame that cannot be read, so that its request can be answered."""

from __future__ import annotations

import json
import re
from typing import Final

from paddler_trio.wire.json_limits import UNCOUNTED_BYTES, JsonLimitError, check_count

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
