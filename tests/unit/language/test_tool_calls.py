"""Calls are read in the formats models write, and each is judged alone."""

import itertools
import json
import string

import pytest
from four_markers import Markers, automaton
from hypothesis import given, settings
from hypothesis import strategies as st

from paddler_trio.errors import MAX_MESSAGE_CHARS
from paddler_trio.language.answers.call_events import Remainder
from paddler_trio.language.answers.tool_calls import (
    Parsed,
    ParsedCall,
    ParseFailed,
    ToolCallOutcome,
    ToolCallReader,
    ValidationFailed,
)
from paddler_trio.language.tool_schemas import MAX_SCHEMA_CHARS, ToolSchemaError

steady = settings(deadline=None, derandomize=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "Infinity" not in json.dumps(value))


def tool(name: str, parameters: object = None) -> dict[str, object]:
    function: dict[str, object] = {"name": name, "description": "d"}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
NOTE = tool("note")


def reader(*tools: dict[str, object], limit: int = 10_000) -> ToolCallReader:
    numbers = itertools.count(1)
    return ToolCallReader(tools, new_id=lambda: f"id{next(numbers)}", max_section_chars=limit)


def read(text: str, *tools: dict[str, object]) -> list[ToolCallOutcome]:
    calls = reader(*(tools or (WEATHER, NOTE)))
    calls.feed(text)
    return calls.close_section()


def paris(number: int = 1) -> ParsedCall:
    return ParsedCall(f"id{number}", "get_weather", {"city": "Paris"})


@pytest.mark.parametrize(
    "text",
    [
        '\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        "get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>",
        'get_weather[ARGS]{"city": "Paris"}',
        'get_weather[CALL_ID]a1b2[ARGS]{"city": "Paris"}',
    ],
)
def test_a_call_is_recognised_in_each_way_models_write_it(text: str) -> None:
    assert read(text) == [Parsed((paris(),))]


def test_values_without_quotes_take_the_type_the_schema_wants() -> None:
    text = (
        "<function=get_weather><parameter=city>12</parameter>"
        "<parameter=days>3</parameter></function>"
    )
    call = ParsedCall("id1", "get_weather", {"city": "12", "days": 3})
    assert read(text) == [Parsed((call,))]


@steady
@given(
    st.dictionaries(st.text(), json_values, max_size=4), st.text(string.ascii_letters, min_size=1)
)
def test_any_json_arguments_arrive_as_they_were_written(
    arguments: dict[str, object], name: str
) -> None:
    for ensure_ascii in (True, False):
        text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ensure_ascii)
        assert read(text, tool(name)) == [Parsed((ParsedCall("id1", name, arguments),))]


@steady
@given(st.text() | st.text('{}[]":,name<>=/function parameter'))
def test_no_text_of_a_model_is_more_than_an_outcome(text: str) -> None:
    outcomes = read(text)
    assert (outcomes == []) == (text.strip() == "")


def test_a_bad_call_does_not_cost_its_siblings() -> None:
    outcomes = read(
        '{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "get_weather", "arguments": {"days": "x", "sky": 1}}\n'
        '{"name": "fly", "arguments": {}}, {"name": 7}\n'
        '{"name": "note"}\n'
        '{"name": "get_weather", "argum'
    )
    # a call has its id from its beginning, also one that turns out to be wrong
    assert outcomes[0] == Parsed((paris(), ParsedCall("id4", "note", {})))
    match outcomes[1:]:
        case [
            ValidationFailed(messages=messages),
            Remainder() as no_name,
            Remainder() as cut,
        ]:
            assert len(messages) == 4
            assert all("get_weather" in message for message in messages[:3])
            assert "fly" in messages[3]
            assert no_name.text == '{"name": 7}'
            assert cut.text == '{"name": "get_weather", "argum'
        case other:
            pytest.fail(f"unexpected outcomes {other}")


def test_every_violation_is_reported_with_its_place() -> None:
    [outcome] = read('{"name": "get_weather", "arguments": {"days": "x"}}')
    assert outcome == ValidationFailed(
        (
            "tool 'get_weather': $.days: 'x' is not of type 'integer'",
            "tool 'get_weather': $: 'city' is a required property",
        )
    )


def test_arguments_that_are_no_object_pass_only_where_no_schema_says_otherwise() -> None:
    assert read('{"name": "note", "arguments": "buy milk"}') == [
        Parsed((ParsedCall("id1", "note", "buy milk"),))
    ]
    [outcome] = read('{"name": "get_weather", "arguments": "Paris"}')
    assert isinstance(outcome, ValidationFailed)


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"'])
def test_values_that_no_json_text_can_carry_on_are_refused(value: str) -> None:
    [outcome] = read(f'{{"name": "note", "arguments": {{"x": {value}}}}}')
    assert isinstance(outcome, Remainder)


def test_sections_are_judged_one_by_one_as_they_end() -> None:
    calls = reader(WEATHER)
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    classifier = automaton(Markers(None, None, "<tool_call>", "</tool_call>"))
    outcomes = [o for p in classifier.feed(f"I look.{call}{call}!") for o in calls.feed_piece(p)]
    assert outcomes == [Parsed((paris(1),)), Parsed((paris(2),))]
    assert calls.close_section() == []


def test_a_section_beyond_the_limit_is_reported_and_forgotten() -> None:
    calls = reader(NOTE, limit=20)
    for _ in range(3):
        calls.feed("x" * 10)
    [outcome] = calls.close_section()
    assert outcome == ParseFailed("tool call of 30 characters, the limit is 20")
    calls.feed('{"name": "note"}')
    assert isinstance(calls.close_section()[0], Parsed)


def test_a_bottomless_call_is_an_outcome() -> None:
    calls = reader(NOTE, limit=200_000)
    calls.feed('{"name": "note", "arguments": ' + '{"a":' * 30_000)
    assert calls.close_section() == [ParseFailed("tool call is nested too deeply")]


def test_ids_of_different_answers_differ() -> None:
    ids = set()
    for _ in range(50):
        calls = ToolCallReader([NOTE])
        calls.feed('{"name": "note"}')
        match calls.close_section():
            case [Parsed(calls=(call,))]:
                ids.add(call.id)
    assert len(ids) == 50


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (tool("t", {"description": "x" * MAX_SCHEMA_CHARS}), str(MAX_SCHEMA_CHARS)),
        (tool("t", [1]), "parameters"),
        (tool(""), "name"),
        ({"type": "function"}, "function"),
        ({"type": "web_search", "function": {"name": "t"}}, "web_search"),
    ],
)
def test_a_tool_that_cannot_be_judged_is_refused_by_name(
    bad: dict[str, object], words: str
) -> None:
    with pytest.raises(ToolSchemaError, match=words) as caught:
        ToolCallReader([bad])
    assert caught.value.tool in str(caught.value)


def test_what_is_quoted_of_a_tool_is_bounded() -> None:
    with pytest.raises(ToolSchemaError, match="parameters has to be") as caught:
        ToolCallReader([tool("n" * 100_000, [1])])
    assert len(str(caught.value)) <= MAX_MESSAGE_CHARS


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ToolSchemaError, match="two tools"):
        ToolCallReader([NOTE, NOTE])


def test_a_bottomless_schema_is_refused() -> None:
    schema: dict[str, object] = {}
    for _ in range(5000):
        schema = {"not": schema}
    with pytest.raises(ToolSchemaError, match="nested too deeply"):
        ToolCallReader([tool("t", schema)])


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} if i < 40 else {}
                for i in range(41)
            },
        },
    ],
)
def test_references_that_lead_everywhere_end_in_a_message(schema: object) -> None:
    [outcome] = read('{"name": "t", "arguments": {}}', tool("t", schema))
    assert isinstance(outcome, ValidationFailed)
    assert "schema" in outcome.messages[0]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "required": "city"},
        {"$ref": "https://example.org/schema"},
        {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"$schema": "https://example.org/draft"},
        {"properties": {"a": {"$schema": "x"}}},
        {"$ref": "#"},
        {"$ref": "#/$defs/nowhere"},
        {"properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},
    ],
)
def test_what_is_no_schema_judges_nothing_and_the_rest_is_judged(schema: dict[str, object]) -> None:
    properties = {**schema.get("properties", {}), "b": {"type": "integer"}}  # type: ignore[dict-item]
    odd = tool("t", {**schema, "properties": properties})
    (good,) = read('{"name": "t", "arguments": {"a": 1, "b": 1}}', odd)
    assert isinstance(good, Parsed)
    (bad,) = read('{"name": "t", "arguments": {"b": "x"}}', odd)
    assert isinstance(bad, ValidationFailed)
    assert "is not of type 'integer'" in bad.messages[0]


def test_a_regular_expression_cannot_stop_the_clock() -> None:
    schema = {
        "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {}, r"\p{L}": {}},
        "additionalProperties": False,
    }
    arguments = {"a": "a" * 40 + "!", "b" * 40 + "!": 1}
    call = json.dumps({"name": "t", "arguments": arguments})
    assert read(call, tool("t", schema)) == [Parsed((ParsedCall("id1", "t", arguments),))]


def test_schemas_of_older_drafts_are_read_as_such() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"pair": {"items": [{"type": "string"}, {"$ref": "#/definitions/n"}]}},
        "definitions": {"n": {"type": "integer"}},
    }
    assert isinstance(
        read('{"name":"t","arguments":{"pair":["a",1]}}', tool("t", schema))[0], Parsed
    )
    [outcome] = read('{"name":"t","arguments":{"pair":["a","b"]}}', tool("t", schema))
    assert isinstance(outcome, ValidationFailed)
