from __future__ import annotations

import inspect

import attrs
import pytest
import wire_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_values import JSON_VALUES, values_of

from effort import examples
from paddler_trio.errors import WireError
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler import (
    agent_issue,
    desired_state,
    messages,
    request_params,
    results,
    status,
)

CLASSES = sorted(
    {
        value
        for module in (
            agent_issue,
            desired_state,
            request_params,
            messages,
            results,
            status,
            wire_client,
        )
        for value in vars(module).values()
        if inspect.isclass(value) and attrs.has(value)
    },
    key=lambda cls: cls.__name__,
)
UNIONS: dict[str, object] = {
    "AgentIssue": agent_issue.AgentIssue,
    "AgentMessage": messages.AgentMessage,
    "AgentResponseBody": messages.AgentResponseBody,
    "BalancerMessage": messages.BalancerMessage,
    "ContentPart": request_params.ContentPart,
    "DesiredModel": desired_state.DesiredModel,
    "EmbeddingResult": results.EmbeddingResult,
    "GeneratedTokenResult": results.GeneratedTokenResult,
    "GrammarConstraint": request_params.GrammarConstraint,
    "InferenceClientMessage": messages.InferenceClientMessage,
    "InferenceResponseBody": messages.InferenceResponseBody,
    "InferenceServerMessage": messages.InferenceServerMessage,
    "MessageContent": request_params.MessageContent,
    "NormalizationMethod": request_params.NormalizationMethod,
    "ToolCallArguments": results.ToolCallArguments,
}
quick = settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@quick
@given(data=st.data())
def test_every_value_of_a_class_survives_the_wire(cls: type[object], data: st.DataObject) -> None:
    value = data.draw(values_of(cls))
    assert structure(loads(dumps(unstructure(value))), cls) == value


@pytest.mark.parametrize("name", UNIONS)
@quick
@given(data=st.data())
def test_every_value_of_a_union_survives_the_wire(name: str, data: st.DataObject) -> None:
    shape = UNIONS[name]
    value: object = data.draw(values_of(shape))  # type: ignore[arg-type]  # known at run time only
    again: object = structure(loads(dumps(unstructure(value, shape))), shape)  # type: ignore[arg-type]
    assert again == value
    assert type(again) is type(value)


def refusal(value: object, shape: object) -> str | None:
    """The text of the WireError that reading ``value`` raises; ``None`` if it can be read."""
    try:
        structure(value, shape)  # type: ignore[arg-type]  # known at run time only
    except WireError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", UNIONS)
@quick
@given(value=JSON_VALUES)
def test_any_json_is_either_read_or_a_wire_error(name: str, value: object) -> None:
    assert " @ $" in (refusal(value, UNIONS[name]) or " @ $")


def with_a_part_replaced(value: object, part: object, data: st.DataObject) -> object:
    """``value`` with one node somewhere inside it replaced by ``part``."""
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: with_a_part_replaced(value[key], part, data)}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        index = data.draw(st.integers(0, len(value) - 1))
        inner = with_a_part_replaced(value[index], part, data)
        return [*value[:index], inner, *value[index + 1 :]]
    return part


@pytest.mark.parametrize("name", [name for name in UNIONS if name.endswith("Message")])
@settings(quick, max_examples=examples(60))
@given(data=st.data(), part=JSON_VALUES)
def test_a_message_damaged_anywhere_is_either_read_or_a_wire_error(
    name: str, data: st.DataObject, part: object
) -> None:
    message: object = data.draw(values_of(UNIONS[name]))  # type: ignore[arg-type]
    written = loads(dumps(unstructure(message, UNIONS[name])))
    damaged = with_a_part_replaced(written, part, data)
    assert " @ $" in (refusal(damaged, UNIONS[name]) or " @ $")


RECORDS = [
    desired_state.BalancerDesiredState,
    wire_client.AgentControllerSnapshot,
    results.TokenUsage,
]
NULLABLE = {"chat_template_override", "download_filename", "model_path", "name"}


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@quick
@given(data=st.data())
def test_a_record_missing_a_field_or_having_one_too_many_is_refused(
    cls: type[object], data: st.DataObject
) -> None:
    written = unstructure(data.draw(values_of(cls)))
    assert isinstance(written, dict)
    assert refusal({**written, "extra": None}, cls) == "unknown field 'extra' @ $"
    key = data.draw(st.sampled_from(sorted(written)))
    without = {name: member for name, member in written.items() if name != key}
    expected = None if key in NULLABLE else f"required field missing @ $.{key}"
    assert refusal(without, cls) == expected
