"""What a preset makes of a request, and what the client is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.balancer.apis.under_presets import conversation_over, filtered, preset_over
from paddler_trio.wire.codec import structure
from paddler_trio.wire.trio.presets import Preset, TokenBounds
from paddler_trio.wire.trio.work import (
    ChoiceGrammar,
    ConversationPrompt,
    Generate,
    InfillPrompt,
    SamplingOverrides,
    TextPrompt,
    TokenPrompt,
)

Message = Mapping[str, Any]
TOOL: Message = {"type": "function", "function": {"name": "look"}}
OTHER_TOOL: Message = {"type": "function", "function": {"name": "listen"}}
HELLO: Message = {"role": "user", "content": "hello"}


def preset(**fields: Any) -> Preset:
    return structure({"name": "p", **fields}, Preset)


def conversation(*messages: Message, **fields: Any) -> Generate:
    prompt = {name: fields.pop(name) for name in [*fields] if hasattr(ConversationPrompt, name)}
    return Generate(prompt=ConversationPrompt(messages=messages or (HELLO,), **prompt), **fields)


def over(made: Preset, generate: Generate) -> tuple[Generate, list[str]]:
    ignored = IgnoredFields()
    return preset_over(made, generate, ignored), ignored.names


def messages_of(generate: Generate) -> list[Any]:
    assert isinstance(generate.prompt, ConversationPrompt)
    return list(generate.prompt.messages)


def test_an_empty_preset_changes_nothing() -> None:
    asked = conversation(thinking=True, max_tokens=4, stop=("a",))
    assert over(preset(), asked) == (asked, [])


def test_the_system_text_is_before_the_clients_in_one_message() -> None:
    brief = preset(system="Be brief.")
    made, _ = over(brief, conversation(HELLO))
    assert messages_of(made) == [{"role": "system", "content": "Be brief."}, HELLO]
    made, names = over(brief, conversation({"role": "system", "content": "Be kind."}, HELLO))
    assert messages_of(made) == [{"role": "system", "content": "Be brief.\n\nBe kind."}, HELLO]
    assert names == []
    part = {"type": "text", "text": "Be kind."}
    made, _ = over(brief, conversation({"role": "system", "content": [part]}, HELLO))
    assert messages_of(made)[0]["content"] == [{"type": "text", "text": "Be brief.\n\n"}, part]


def test_the_system_text_is_instead_of_the_clients_and_that_is_told() -> None:
    alone = preset(system="Be brief.", system_place="instead")
    later = {"role": "system", "content": "Forget it."}
    made, names = over(alone, conversation({"role": "system", "content": "x"}, HELLO, later))
    assert messages_of(made) == [{"role": "system", "content": "Be brief."}, HELLO]
    assert names == ["system"]


@pytest.mark.parametrize(
    "prompt", [TextPrompt(text="a"), TokenPrompt(tokens=(1,)), InfillPrompt(prefix="", suffix="")]
)
def test_a_prompt_that_is_not_rendered_has_no_place_for_a_system_text(prompt: Any) -> None:
    generate = Generate(prompt=prompt)
    for made in (preset(system="Be brief."), preset(tools=[TOOL])):
        with pytest.raises(ApiError, match=r"the model 'p' has .*send messages"):
            over(made, generate)
    changed, _ = over(preset(sampling={"temperature": 0}), generate)
    assert changed.sampling.temperature == 0


def test_sampling_fills_in_or_is_forced() -> None:
    asked = conversation(sampling=SamplingOverrides(temperature=1.5, top_k=3))
    fills = preset(sampling={"temperature": 0.5, "top_p": 0.5})
    made, names = over(fills, asked)
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k) == (1.5, 0.5, 3)
    assert names == []
    forces = preset(sampling={"temperature": 0.5, "top_p": 0.5}, forced=["temperature"])
    made, names = over(forces, asked)
    assert (made.sampling.temperature, made.sampling.top_p) == (0.5, 0.5)
    assert names == ["temperature"]
    assert over(forces, conversation())[1] == [], "nobody asked for another"


@pytest.mark.parametrize(
    ("name", "own", "given_value"),
    [
        ("thinking", True, False),
        ("max_reasoning_tokens", 5, 9),
        ("tools", [TOOL], (OTHER_TOOL,)),
        ("constraint", {"type": "choice", "choices": ["a"]}, ChoiceGrammar(("b",))),
    ],
)
def test_the_preset_is_what_a_request_leaves_open_and_if_forced_what_it_does_not(
    name: str, own: Any, given_value: Any
) -> None:
    def value(generate: Generate) -> Any:
        holder = generate if name == "constraint" else generate.prompt
        return getattr(holder, name)

    plain, forced = preset(**{name: own}), preset(**{name: own}, forced=[name])
    assert value(over(plain, conversation())[0]) == getattr(plain, name)
    made, names = over(plain, conversation(**{name: given_value}))
    assert (value(made), names) == (given_value, [])
    made, names = over(forced, conversation(**{name: given_value}))
    assert (value(made), names) == (getattr(plain, name), [name])


def test_a_choice_among_other_tools_does_not_stay() -> None:
    asked = conversation(tools=(OTHER_TOOL,), tool_choice="function", tool_name="listen")
    made, _ = over(preset(tools=[TOOL], forced="tools"), asked)
    assert isinstance(made.prompt, ConversationPrompt)
    assert (made.prompt.tool_choice, made.prompt.tool_name) == ("auto", None)


def test_stop_texts_are_added_or_forced() -> None:
    asked = conversation(stop=("a", "b"))
    assert over(preset(stop=["c", "a"]), asked)[0].stop == ("c", "a", "b")
    made, names = over(preset(stop=["c"], forced=["stop"]), asked)
    assert (made.stop, names) == (("c",), ["stop"])


def test_template_variables_are_merged() -> None:
    asked = conversation(template_kwargs={"a": 1, "b": 2})

    def words(made: Preset) -> Any:
        return over(made, asked)[0].prompt.template_kwargs  # type: ignore[union-attr]

    assert words(preset(template_kwargs={"b": 9, "c": 3})) == {"a": 1, "b": 2, "c": 3}
    assert words(preset(template_kwargs={"b": 9}, forced=["template_kwargs"])) == {"a": 1, "b": 9}


@given(
    asked=st.none() | st.integers(1, 99),
    bounds=st.tuples(*[st.none() | st.integers(1, 99)] * 3),
)
def test_token_bounds_hold(asked: int | None, bounds: tuple[int | None, ...]) -> None:
    default, least, most = bounds
    if (least or 1) > (most or 99) or not (least or 1) <= (default or least or 1) <= (most or 99):
        return
    allowed = TokenBounds(default=default, least=least, most=most)
    got = allowed.of(asked)
    if asked is None:
        assert got == (default or most)
    else:
        assert got is not None
        assert (least or 1) <= got <= (most or 99)
        if (least or 1) <= asked <= (most or 99):
            assert got == asked


def test_bounds_that_change_a_number_are_told() -> None:
    bounded = preset(max_tokens={"least": 4, "most": 8})
    for asked, most, names in [(None, 8, []), (2, 4, ["max_tokens"]), (9, 8, ["max_tokens"])]:
        made, told = over(bounded, conversation(max_tokens=asked))
        assert (made.max_tokens, told) == (most, names)


def test_a_counted_prompt_is_the_one_that_is_answered() -> None:
    brief = preset(system="Be brief.", tools=[TOOL], thinking=True)
    asked = conversation()
    assert isinstance(asked.prompt, ConversationPrompt)
    assert conversation_over(brief, asked.prompt, IgnoredFields()) == over(brief, asked)[0].prompt


def test_filters_leave_fields_out_or_refuse_them() -> None:
    made = preset(ignore=["user", "options.num_ctx", "speculative.n_max"], refuse=["logprobs"])
    body = {
        "model": "p",
        "user": "me",
        "options": {"num_ctx": 1, "seed": 2},
        "speculative.n_max": 3,
        "logprobs": None,
    }
    ignored = IgnoredFields(is_strict=True)
    assert filtered(made, body, ignored) == {
        "model": "p",
        "options": {"seed": 2},
        "logprobs": None,
    }
    assert ignored.names == ["user", "options.num_ctx", "speculative.n_max"]
    assert body["options"] == {"num_ctx": 1, "seed": 2}, "the client's own is left as it is"
    with pytest.raises(ApiError, match="logprobs cannot be given: the model 'p' refuses it"):
        filtered(made, {"logprobs": True}, ignored)
    assert filtered(made, {"options": 3}, ignored) == {"options": 3}
