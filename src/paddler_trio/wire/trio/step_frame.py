"""The frame of one engine pass: what each of its requests got, in entries of ``id``, ``tokens`` and
``results``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import Final

from paddler_trio.wire.json_text import JsonText, one_text
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
    fields: dict[str, object] = {}
    if prompt is not None:
        fields["prompt"] = prompt.fields()
    if preemptions:
        fields["preemptions"] = preemptions
    if model is not None:
        fields["model"] = model
    ids = ",".join(map(str, tokens))
    shown = ",".join(map(_result_text, results))
    more = f",{_dumps(fields)[1:-1]}" if fields else ""
    return (
        f'{{"id":{encode_basestring(wire_id)},"tokens":[{ids}],"results":[{shown}]{more}}}'
    ).encode()


def step_frame(entries: Iterable[bytes]) -> bytes:
    """Return the whole text frame."""
    return _BEGINNING + b",".join(entries) + _END


def _result_text(result: object) -> str:
    """Return the JSON: of a text, as nearly every one is, and of what was written already, without
    an encoder."""
    text = one_text(result)
    if text is not None:
        return text
    match result:
        case {"Logprobs": JsonText(written)}:
            return f'{{"Logprobs":{written}}}'
    return _dumps(result)


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
