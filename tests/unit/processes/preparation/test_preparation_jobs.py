"""What a job is refused for once it is done; real ones are in ``tests/integration``."""

from __future__ import annotations

import json
from typing import cast

import pytest

from paddler_trio.language.model_language import Language
from paddler_trio.net.server.connection_limits import HttpLimits
from paddler_trio.processes.preparation import jobs
from paddler_trio.processes.preparation.preparation_messages import Answered, Job
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.trio.request_frame import read_head


def test_an_answer_is_no_longer_than_a_message_that_balancers_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million tokens of 128 blanks each are 6 MB to ask for and 128 MB of text."""
    longest = HttpLimits().max_websocket_message_bytes
    monkeypatch.setattr(jobs, "answer_to", lambda *_: {"text": " " * longest})
    frame = read_head(
        '{"Trio":{"Ask":{"id":"q","question":{"Detokenize":{"tokens":[1]}}}}}', speaks_trio=True
    )
    assert frame is not None
    answered = jobs.prepare(Job(frame, 0, cast("Ready", None)), cast("Language", None))
    assert isinstance(answered, Answered)
    assert len(answered.frame) < longest
    answer = json.loads(answered.frame)["Trio"]["Answer"]
    assert (answer["answer"], answer["code"]) == (None, 413)
    assert "the limit is" in answer["problem"]
