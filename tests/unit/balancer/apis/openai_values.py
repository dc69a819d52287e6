"""Results as agents send them, and streams as clients parse them."""

from __future__ import annotations

import json
from typing import Any

from paddler_trio.balancer.apis.answers.answer import AnswerReader
from paddler_trio.balancer.apis.openai.chat_request import Delivery
from paddler_trio.balancer.apis.openai.completions import TextAnswer
from paddler_trio.nursery_tree.step_results import RawResult

USAGE = {
    "prompt_tokens": 11,
    "cached_prompt_tokens": 4,
    "input_image_tokens": 0,
    "input_audio_tokens": 0,
    "content_tokens": 5,
    "reasoning_tokens": 2,
    "tool_call_tokens": 0,
    "undeterminable_tokens": 1,
}
TIMINGS = {"prompt_n": 7, "prompt_ms": 14.0, "cached_n": 4, "predicted_n": 8, "predicted_ms": 4.0}


def done(reason: str = "stop", stop_text: str | None = None) -> RawResult:
    finish = {"reason": reason, "stop_text": stop_text}
    return {"Done": {"usage": USAGE, "finish": finish, "timings": TIMINGS}}


def readers(delivery: Delivery | None, n: int = 1) -> list[AnswerReader]:
    """Those of an answer with ``n`` choices."""
    is_verbatim = delivery is not None and delivery.reasoning_is_content
    return [AnswerReader(is_verbatim=is_verbatim) for _ in range(n)]


def logprob(token: str) -> RawResult:
    entry = {"id": 1, "token": token, "bytes": list(token.encode()), "logprob": -0.5}
    return {"Logprobs": {**entry, "top": [entry]}}


def chunks(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream as a client parses them; framing is judged byte by byte."""
    events = []
    for block in stream.split(b"\n\n")[:-1]:
        assert block.startswith(b"data: ")
        assert b"\n" not in block
        events.append(block.removeprefix(b"data: "))
    assert stream.endswith(b"\n\n") or not stream
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_answer(text: str = "") -> TextAnswer:
    """An answer that is text whatever it has, and begins with ``text``."""
    return TextAnswer(text, AnswerReader(raw_calls=True, is_verbatim=True))
