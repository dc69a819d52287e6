"""Work as bytes: the frames an agent reads, and what they may weigh."""

from __future__ import annotations

import json

import pytest

from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.paddler.messages import AgentRequest, parse_agent_message
from paddler_trio.wire.trio import written_work
from paddler_trio.wire.trio.generate import Generate, TextPrompt, TokenPrompt, Work
from paddler_trio.wire.trio.paddler_work import Inexpressible
from paddler_trio.wire.trio.trio_link import MAX_FRAME_BYTES, TAG, Start, parse_extension
from paddler_trio.wire.trio.written_work import (
    MAX_PADDLER_WORK_BYTES,
    MAX_WORK_BYTES,
    TooLong,
    write_work,
)

RAW = {"ContinueFromRawPrompt": {"raw_prompt": "Once", "max_tokens": 5, "grammar": None}}


def work_of(generate: Generate) -> dict[str, object]:
    work = unstructure(generate, Work)
    assert isinstance(work, dict)
    return work


@pytest.mark.parametrize("in_runs", [False, True])
def test_an_agent_of_ours_reads_the_start_it_is_sent(in_runs: bool) -> None:
    work = work_of(Generate(prompt=TokenPrompt(tokens=(1, 2))))
    frame = write_work(work, in_runs=in_runs).start_frame(
        "7.1", client="ab", isolated=None, seed=2**32 - 1, tokens=[3, 4]
    )
    assert parse_extension(json.loads(frame)[TAG]) == Start(
        "7.1", work, 2**32 - 1, (3, 4), client="ab"
    )


def test_an_agent_of_paddlers_reads_the_request_it_is_sent() -> None:
    frame = write_work(RAW).request_frame("7.1", to_paddler=True)
    message = parse_agent_message(frame)
    assert isinstance(message, AgentRequest)
    assert message.id == "7.1"


def test_work_of_ours_is_written_for_both_where_it_can_be_said() -> None:
    written = write_work(work_of(Generate(prompt=TextPrompt(text="Once"))))
    assert structure(json.loads(written.body), Work) == Generate(prompt=TextPrompt(text="Once"))
    message = parse_agent_message(written.request_frame("1", to_paddler=True))
    assert isinstance(message, AgentRequest)
    assert written.paddler_body is not None
    assert written.size_bytes == len(written.body) + len(written.paddler_body)
    tokens = write_work(work_of(Generate(prompt=TokenPrompt(tokens=(1,)))))
    assert tokens.needs_ours == Inexpressible("prompt.Tokens")
    assert tokens.paddler_body is None


def test_paddlers_own_work_is_written_once() -> None:
    written = write_work(RAW)
    assert written.paddler_body is written.body
    assert written.size_bytes == len(written.body)


def test_what_grows_when_it_is_written_is_judged_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(written_work, "MAX_PADDLER_WORK_BYTES", 1000)
    monkeypatch.setattr(written_work, "MAX_WORK_BYTES", 2000)
    schema = {"enum": json.loads("[" + "1e15," * 70 + "1]")}
    work = {"ContinueFromRawPrompt": {**RAW["ContinueFromRawPrompt"], "grammar": schema}}
    assert len(json.dumps(schema).replace("1000000000000000.0", "1e15")) < 1000
    written = write_work(work)
    assert written.needs_ours == TooLong(len(written.body), 1000)
    assert written.excess is None
    more = write_work({"ContinueFromRawPrompt": {"grammar": [schema, schema]}})
    assert more.excess == TooLong(len(more.body), 2000)


def test_the_largest_work_fits_a_frame_with_a_long_continuation() -> None:
    million = len(json.dumps([151_000] * 1_000_000, separators=(",", ":")))
    assert MAX_WORK_BYTES + million + 1000 < MAX_FRAME_BYTES
    assert MAX_PADDLER_WORK_BYTES < 16 * 1024 * 1024 < MAX_WORK_BYTES
