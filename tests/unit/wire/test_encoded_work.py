"""Work as bytes: the frames an agent reads, and what they may weigh."""

from __future__ import annotations

import json

import attrs
import pytest

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure
from paddler_trio.wire.paddler.messages import AgentRequest, parse_agent_message
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
    ConversationMessage,
    EmbeddingInputDocument,
    Function,
    GbnfGrammar,
    GenerateEmbeddingBatchParams,
    ImageUrl,
    ImageUrlPart,
    ParametersSchema,
    RmsNorm,
    TextPart,
    Tool,
)
from paddler_trio.wire.trio import request_frame
from paddler_trio.wire.trio.paddler_translation import UnsupportedByPaddler
from paddler_trio.wire.trio.request_frame import (
    MAX_PADDLER_WORK_BYTES,
    MAX_WORK_BYTES,
    TooLong,
    encode_work,
    read_head,
)
from paddler_trio.wire.trio.trio_link import MAX_FRAME_BYTES, TAG, Start, parse_extension
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ConversationPrompt,
    Embed,
    Generate,
    LogitBias,
    Rank,
    SamplingOverrides,
    TextInput,
    TextPrompt,
    TokenInput,
    TokenPrompt,
    Work,
)

RAW = ContinueFromRawPromptParams("Once", 5)


@pytest.mark.parametrize("in_runs", [False, True])
def test_an_agent_of_ours_reads_the_start_it_is_sent(in_runs: bool) -> None:
    work = Generate(prompt=TokenPrompt(tokens=(1, 2)))
    frame = encode_work(work, in_runs=in_runs).start_frame(
        "7.1", client="ab", isolated=None, seed=2**32 - 1, tokens=[3, 4]
    )
    assert parse_extension(json.loads(frame)[TAG]) == Start(
        "7.1", work, 2**32 - 1, (3, 4), client="ab"
    )


def test_an_agent_of_paddlers_reads_the_request_it_is_sent() -> None:
    frame = encode_work(RAW).request_frame("7.1", to_paddler=True)
    message = parse_agent_message(frame)
    assert isinstance(message, AgentRequest)
    assert message.id == "7.1"


def test_work_of_ours_is_written_for_both_where_it_can_be_said() -> None:
    work = Generate(prompt=TextPrompt(text="Once"))
    encoded = encode_work(work)
    assert structure(json.loads(encoded.body), Work) == work
    message = parse_agent_message(encoded.request_frame("1", to_paddler=True))
    assert isinstance(message, AgentRequest)
    assert encoded.paddler_body is not None
    assert encoded.size_bytes == len(encoded.body) + len(encoded.paddler_body)
    tokens = encode_work(Generate(prompt=TokenPrompt(tokens=(1,))))
    assert tokens.needs_ours == UnsupportedByPaddler("prompt.Tokens")
    assert tokens.paddler_body is None


def test_paddlers_own_work_is_written_once() -> None:
    encoded = encode_work(RAW)
    assert encoded.paddler_body is encoded.body
    assert encoded.size_bytes == len(encoded.body)


def test_what_grows_when_it_is_written_is_judged_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_frame, "MAX_PADDLER_WORK_BYTES", 1000)
    monkeypatch.setattr(request_frame, "MAX_WORK_BYTES", 2000)
    schema = ParametersSchema("object", {"enum": json.loads("[" + "1e15," * 70 + "1]")})
    assert len(json.dumps(schema.properties).replace("1000000000000000.0", "1e15")) < 500
    tool = Tool(Function("f", "", schema))
    work = ContinueFromConversationHistoryParams(
        add_generation_prompt=True,
        conversation_history=(),
        enable_thinking=False,
        max_tokens=5,
        tools=(tool,),
    )
    encoded = encode_work(work)
    assert encoded.needs_ours == TooLong(len(encoded.body), 1000)
    assert encoded.excess is None
    more = encode_work(attrs.evolve(work, tools=(tool, tool)))
    assert more.excess == TooLong(len(more.body), 2000)


def test_the_largest_work_fits_a_frame_with_a_long_continuation() -> None:
    million = len(json.dumps([151_000] * 1_000_000, separators=(",", ":")))
    assert MAX_WORK_BYTES + million + 1000 < MAX_FRAME_BYTES
    assert MAX_PADDLER_WORK_BYTES < 16 * 1024 * 1024 < MAX_WORK_BYTES


@pytest.mark.parametrize("in_runs", [False, True])
def test_a_text_that_is_not_unicode_is_refused(in_runs: bool) -> None:
    with pytest.raises(WireError, match="not Unicode"):
        encode_work(ContinueFromRawPromptParams("\ud800", 5), in_runs=in_runs)


CHAT = Generate(
    prompt=ConversationPrompt(messages=({"role": "user", "content": "Hello"},)),
    sampling=SamplingOverrides(
        temperature=0.7,
        logit_bias=(LogitBias(token=5, bias=-100.0), LogitBias(text=" cat")),
    ),
)
CONVERSATION = ContinueFromConversationHistoryParams(
    add_generation_prompt=True,
    conversation_history=(
        ConversationMessage("user", "hi"),
        ConversationMessage("user", (TextPart("a"), ImageUrlPart(ImageUrl("data:x")))),
    ),
    enable_thinking=True,
    max_tokens=7,
    tools=(
        Tool(Function("f", "d", ParametersSchema("object", {"a": {"type": "integer"}}, ("a",)))),
    ),
)
BYTES: list[tuple[Work, str]] = [
    (
        ContinueFromRawPromptParams("Once", 5, GbnfGrammar('root ::= "ä"', "root")),
        (
            '{"ContinueFromRawPrompt":{"raw_prompt":"Once","max_tokens":5,"grammar":{"type":"gbnf",'
            '"grammar":"root ::= \\"ä\\"","root":"root"}}}'
        ),
    ),
    (
        CONVERSATION,
        (
            '{"ContinueFromConversationHistory":{"add_generation_prompt":true,"conversation_history":'
            '[{"role":"user","content":"hi"},{"role":"user","content":[{"type":"text","text":"a"},'
            '{"type":"image_url","image_url":{"url":"data:x"}}]}],"enable_thinking":true,'
            '"max_tokens":7,"grammar":null,"parse_tool_calls":false,"tools":[{"type":"function",'
            '"function":{"name":"f","description":"d","parameters":{"type":"object","properties":'
            '{"a":{"type":"integer"}},"required":["a"]}}}]}}'
        ),
    ),
    (
        GenerateEmbeddingBatchParams((EmbeddingInputDocument("1", "x"),), RmsNorm(0.1)),
        (
            '{"GenerateEmbeddingBatch":{"input_batch":[{"id":"1","content":"x"}],'
            '"normalization_method":{"RmsNorm":{"epsilon":0.1}}}}'
        ),
    ),
    (
        CHAT,
        (
            '{"Generate":{"prompt":{"Conversation":{"messages":[{"role":"user","content":"Hello"}],'
            '"tools":[],"tool_choice":"auto","tool_name":null,"parallel_tool_calls":true,'
            '"raw_tool_calls":false,"continue_final_message":false,"add_generation_prompt":true,'
            '"thinking":null,"max_reasoning_tokens":null,"template_kwargs":{}}},"max_tokens":null,'
            '"sampling":{"temperature":0.7,"logit_bias":[{"token":5,"bias":-100.0},'
            '{"text":" cat","bias":null}]},"constraint":null,"stop":[],"logprobs":null,'
            '"reuse_prefix":true,"cache_salt":""}}'
        ),
    ),
    (
        Generate(prompt=TextPrompt(text="Once"), max_tokens=5, constraint=AnyJsonGrammar()),
        (
            '{"Generate":{"prompt":{"Text":{"text":"Once"}},"max_tokens":5,"sampling":{},'
            '"constraint":{"type":"json_object"},"stop":[],"logprobs":null,"reuse_prefix":true,'
            '"cache_salt":""}}'
        ),
    ),
    (
        Embed(inputs=(TextInput(text="a"), TokenInput(tokens=(1, 2)))),
        (
            '{"Embed":{"inputs":[{"Text":{"text":"a"}},{"Tokens":{"tokens":[1,2]}}],'
            '"normalize":"l2","oversize":"report"}}'
        ),
    ),
    (
        Rank(query="q", documents=("a", "b")),
        '{"Rank":{"query":"q","documents":["a","b"]}}',
    ),
]


@pytest.mark.parametrize("in_runs", [False, True])
@pytest.mark.parametrize(("work", "body"), BYTES)
def test_every_kind_of_work_has_these_bytes(work: Work, body: str, in_runs: bool) -> None:
    encoded = encode_work(work, in_runs=in_runs)
    assert encoded.body.decode() == body
    start = encoded.start_frame("7.1", client="ab", isolated="engine", seed=7, tokens=[1, 2])
    assert start.decode() == (
        '{"Trio":{"Start":{"id":"7.1","client":"ab","isolated":"engine","request":'
        + body
        + ',"seed":7,"tokens":[1,2]}}}'
    )
    request = encoded.request_frame("7.1", to_paddler=False)
    assert request.decode() == '{"Request":{"id":"7.1","request":' + body + "}}"
    assert parse_extension(json.loads(start)[TAG]) == Start(
        "7.1", work, 7, (1, 2), client="ab", isolated="engine"
    )


def test_work_and_frames_show_their_size_and_not_their_text() -> None:
    encoded = encode_work(ContinueFromRawPromptParams("secret " * 100, 5))
    assert f"<{len(encoded.body)} bytes>" in repr(encoded)
    frame = read_head(encoded.request_frame("1", to_paddler=True).decode(), speaks_trio=False)
    assert "id='1'" in repr(frame)
    assert "secret" not in repr(encoded) + repr(frame)
