"""The frame of one engine pass: what each of its requests got, in entries of ``id``, ``tokens`` and
``results``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import Final

from paddler_trio.wire.json_text import one_text
from paddler_trio.wire.trio.prompt_stages import PromptStages
from paddler_trio.wire.trio.trio_link import TAG

_BEGINNING: Final = b'{"%b":{"Step":[' % TAG.encode()
_END: Final = b"]}}"


def step_entry(
    wire_id: str,
    tokens: Sequence[int],
    results: Sequence[object],
    prompt: PromptStages | None = None,
    preemptions: int = 0,
    model: str | None = None,
) -> bytes:
    """One entry; what comes after ``results`` is left out where there is nothing to report."""
    if prompt is None and model is None and not preemptions:
        entry = _plain_tokens(wire_id, tokens, results)
        if entry is not None:
            return entry
    fields: dict[str, object] = {"id": wire_id, "tokens": tokens, "results": results}
    if prompt is not None:
        fields["prompt"] = prompt.fields()
    if preemptions:
        fields["preemptions"] = preemptions
    if model is not None:
        fields["model"] = model
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def step_frame(entries: Iterable[bytes]) -> bytes:
    """Return the whole text frame."""
    return _BEGINNING + b",".join(entries) + _END


def _plain_tokens(wire_id: str, tokens: Sequence[int], results: Sequence[object]) -> bytes | None:
    """Return an entry of tokens and their texts, as nearly every one is; None for what has to be
    encoded."""
    texts = []
    for result in results:
        text = one_text(result)
        if text is None:
            return None
        texts.append(text)
    ids = ",".join(map(str, tokens))
    shown = ",".join(texts)
    return (f'{{"id":{encode_basestring(wire_id)},"tokens":[{ids}],"results":[{shown}]}}').encode()
