from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_client import parse_inference_client_message
from wire_values import TEXT, values_of

from effort import examples
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import loads, structure, unstructure
from paddler_trio.wire.paddler.messages import (
    AgentResponse,
    BalancerMessage,
    ErrorDescription,
    ErrorEnvelope,
    InferenceResponse,
    InferenceResponseBody,
    UnknownNotification,
    error_line,
    parse_agent_message,
    parse_balancer_message,
    parse_inference_server_message,
    render,
    response_line,
)
from paddler_trio.wire.paddler.raw_results import recover_request_id


@settings(max_examples=examples(60), deadline=None)
@given(st.none() | TEXT, TEXT, values_of(InferenceResponseBody))
def test_the_fast_line_is_the_slow_message_byte_for_byte(
    generated_by: str | None, request_id: str, body: InferenceResponseBody
) -> None:
    message = InferenceResponse(generated_by, request_id, body)
    line = response_line(generated_by, request_id, unstructure(body, InferenceResponseBody))
    assert line == render(message)
    assert b"\n" not in line
    assert parse_inference_client_message(line) == message


@given(TEXT, st.integers(100, 599), TEXT)
def test_an_error_line_is_an_error_envelope(request_id: str, code: int, description: str) -> None:
    line = error_line(request_id, code, description)
    assert b"\n" not in line
    expected = ErrorEnvelope(request_id, ErrorDescription(code, description))
    assert parse_inference_client_message(line) == expected


@pytest.mark.parametrize(
    ("text", "request_id"),
    [
        ('{"Request":{"id":"a","request":{"Nonsense":1}}}', "a"),
        ('{"Request":{"id":"a","extra":1}}', "a"),
        ('{"Request":{"id":"a","id":"b"}}', "b"),
        ('{"Response":{"request_id":"r","response":NaN}}', "r"),
        (b'{"Response":{"request_id":"r"}}', "r"),
        ('{"Request":{"id":"\\ud83e\\udd80"}}', "🦀"),
        ('{"Request":{"id":"\\ud83e"}}', None),
        ('{"Request":{"id":""}}', None),
        ('{"Request":{"id":7}}', None),
        ('{"Request":[]}', None),
        ('{"Notification":{"StopRespondingTo":"a"}}', None),
        ('{"Request":{"id":"a"', None),
        (b"\xff\xfe\x00", None),
        ("[" * 200_000, None),
        ("9" * 5000, None),
        ("[]", None),
        ("", None),
    ],
)
def test_the_id_of_a_bad_frame_is_found_where_there_is_one(
    text: str | bytes, request_id: str | None
) -> None:
    assert recover_request_id(text) == request_id


@given(st.binary(max_size=60))
def test_looking_for_an_id_never_fails(data: bytes) -> None:
    recover_request_id(data)


@pytest.mark.parametrize(
    "response",
    ['"Timeout"', '"Done"', "null", "{}", '{"ContentToken":"a"}', '{"Embedding":"Done","x":1}'],
)
def test_an_agent_answers_with_one_known_kind(response: str) -> None:
    frame = f'{{"Response":{{"generated_by":null,"request_id":"r","response":{response}}}}}'
    with pytest.raises(WireError, match=r" @ \$\.Response\.response$"):
        parse_balancer_message(frame)


def test_an_agent_may_leave_out_its_name_and_its_payload_stays_raw() -> None:
    frame = '{"Response":{"request_id":"r","response":{"GeneratedToken":{"New":[1]}}}}'
    expected = AgentResponse("r", None, {"GeneratedToken": {"New": [1]}})
    assert parse_balancer_message(frame) == expected


_PARTS = (
    '{"Response":{',
    '"generated_by":null,',
    '"generated_by":"rack-3",',
    '"request_id":"r",',
    '"request_id":"",',
    '"response":{"GeneratedToken":{',
    '"ContentToken":',
    '"Done":',
    "}}}}",
    " ",
)


@given(
    name=st.sampled_from(["", '"generated_by":null,', '"generated_by":"rack-3",']),
    text=TEXT,
    ascii_only=st.booleans(),
    kind=st.sampled_from(["ContentToken", "ReasoningToken", "Novelty", "é"]),
    more=st.none() | st.tuples(st.integers(0, 200), st.sampled_from([*_PARTS, '"', "\\", "\x01"])),
)
@settings(max_examples=examples(300))
def test_a_token_read_at_once_is_what_the_parser_makes_of_it(
    name: str, text: str, ascii_only: bool, kind: str, more: tuple[int, str] | None
) -> None:
    token = json.dumps({kind: text}, ensure_ascii=ascii_only, separators=(",", ":"))
    frame = f'{{"Response":{{{name}"request_id":"r","response":{{"GeneratedToken":{token}}}}}}}'
    if more is not None:  # anything more or less, somewhere
        place, what = more
        frame = frame[:place] + what + frame[place + len(what) // 2 :]

    def outcome(read: Callable[[str], object]) -> object:
        try:
            return read(frame)
        except WireError:
            return WireError

    assert outcome(parse_balancer_message) == outcome(
        lambda text: structure(loads(text), BalancerMessage)
    )


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        ('{"Request":{"request":{}}}', "required field missing @ $.Request.id"),
        (
            '{"Request":{"id":"a","request":{"ContinueFromRawPrompt":{"raw_prompt":"x"}}}}',
            "required field missing @ $.Request.request.ContinueFromRawPrompt.max_tokens",
        ),
        (
            '{"Request":{"id":"a","request":"GetModelMetadata"}}',
            "expected ContinueFromConversationHistory or ContinueFromRawPrompt @ $.Request.request",
        ),
        (
            '{"Notification":{"StopRespondingTo":5}}',
            "expected a string, got 5 @ $.Notification.StopRespondingTo",
        ),
        ('{"Response":{}}', "unknown variant 'Response', expected one of Request, Notification"),
        ('{"Error":{"request_id":"a"}}', "required field missing @ $.Error.error"),
    ],
)
def test_a_bad_frame_from_a_client_is_refused_with_its_place(frame: str, complaint: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_inference_server_message(frame)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("frame", ['{"Response":{}}', '{"Notification":"Version"}', "[]"])
def test_agents_refuse_what_is_not_for_them(frame: str) -> None:
    with pytest.raises(WireError):
        parse_agent_message(frame)


@pytest.mark.parametrize("parse", [parse_agent_message, parse_balancer_message])
@pytest.mark.parametrize("notification", ['"Novelty"', '{"Novelty":null}', '{"Novelty":{"a":[1]}}'])
def test_a_notification_of_a_newer_peer_is_told_apart_from_a_broken_one(
    parse: Callable[[str], object], notification: str
) -> None:
    assert parse(f'{{"Notification":{notification}}}') == UnknownNotification("Novelty")


@pytest.mark.parametrize(
    ("parse", "notification"),
    [
        (parse_agent_message, '"SetState"'),
        (parse_agent_message, '{"Version":{}}'),
        (parse_agent_message, "[]"),
        (parse_agent_message, '{"Novelty":1,"Other":2}'),
        (parse_balancer_message, '"RegisterAgent"'),
        (parse_balancer_message, '{"DeregisterAgent":1}'),
        (parse_balancer_message, "null"),
    ],
)
def test_a_broken_notification_is_refused(
    parse: Callable[[str], object], notification: str
) -> None:
    with pytest.raises(WireError, match=r"@ \$\.Notification"):
        parse(f'{{"Notification":{notification}}}')


def test_clients_are_not_told_of_novelties() -> None:
    with pytest.raises(WireError, match="Notification"):
        parse_inference_server_message('{"Notification":"Novelty"}')
