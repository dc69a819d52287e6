"""From a request to what the engine is given, with the bundled model's own vocabulary."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest

from paddler_trio.language.answers.automaton import TokenClass
from paddler_trio.language.model_language import Language, templates_of
from paddler_trio.language.prompting import Prompted, call_reader, prompt_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.rendering import render
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.engine.engine_pipe import Ending, Progress
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.paddler.request_params import ContinueFromRawPromptParams
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    ConversationPrompt,
    Generate,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from vision_models import data_uri, encoded, picture

PIXEL = data_uri(encoded(picture((9, 9, 9))))
SAMPLING = "data:image/svg+xml;base64," + base64.b64encode(b"<svg width='9' height='9'/>").decode()
HELLO: Mapping[str, object] = {"role": "user", "content": "Hello!"}
TOOL: Mapping[str, object] = {
    "type": "function",
    "function": {"name": "now", "description": "The time"},
}


@pytest.fixture(scope="module")
def language(vocabulary: Vocabulary) -> Language:
    source = vocabulary.chat_template()
    assert source is not None
    templates = templates_of(vocabulary, source, is_override=False)
    return Language(vocabulary, templates, InferenceParameters(), "fingerprint")


def prompted(
    language: Language, prompt: Prompt, *, sampled: Sequence[int] = (), stop: tuple[str, ...] = ()
) -> Prompted:
    return prompt_of(Generate(prompt=prompt, stop=stop), language, key=1, seed=7, sampled=sampled)


def conversation(**fields: object) -> ConversationPrompt:
    return attrs.evolve(ConversationPrompt(messages=(HELLO,)), **fields)  # type: ignore[arg-type]


def test_without_a_limit_the_engine_generates_as_many_as_fit(language: Language) -> None:
    start = prompted(language, TextPrompt(text="Once")).start
    assert (start.max_tokens, start.logprobs, start.reuse_prefix, start.salt) == (0, -1, True, "")
    assert start.sampling.seed == 7


def test_special_tokens_of_a_text_are_characters_on_request(language: Language) -> None:
    text = "<|im_start|>user"
    parsed = prompted(language, TextPrompt(text=text)).start.tokens
    plain = prompted(language, TextPrompt(text=text, parse_special=False)).start.tokens
    assert len(parsed) < len(plain)
    pieces = (language.vocabulary.token_bytes(token, special=True) for token in plain)
    assert b"".join(pieces).decode() == text


def test_tokens_are_given_as_they_are(language: Language) -> None:
    assert prompted(language, TokenPrompt(tokens=(5, 6, 7))).start.tokens == [5, 6, 7]


@pytest.mark.parametrize(
    "prompt",
    [ConversationPrompt(messages=(HELLO,)), TextPrompt(text="Once"), TokenPrompt(tokens=(9,))],
)
def test_a_prompt_stands_behind_its_context(language: Language, prompt: Prompt) -> None:
    alone = prompted(language, prompt).start.tokens
    for context in ((), (5, 6, 7)):
        work = Generate(prompt=prompt, context=context)
        done = prompt_of(work, language, key=1, seed=7, sampled=())
        assert done.start.tokens == [*context, *alone]
        reports = [done.output.progress(Progress(1, 9, 0, each)) for each in (0, 9)]
        assert reports[0][0]["Progress"]["tokens"] == done.start.tokens  # type: ignore[index]
        assert "tokens" not in reports[1][0]["Progress"]  # type: ignore[operator]


def test_the_mark_of_a_beginning_is_not_behind_a_context(language: Language) -> None:
    vocabulary = language.vocabulary
    text = vocabulary.tokenize_prompt("Once")

    @attrs.define
    class Marked:
        """The vocabulary of a model that was trained with a mark before each text."""

        adds_bos = True
        bos_token = 1

        def __getattr__(self, name: str) -> object:
            return getattr(vocabulary, name)

        def tokenize_prompt(self, rendered: str) -> list[int]:
            return [1, *vocabulary.tokenize_prompt(rendered)]

    marked = attrs.evolve(language, vocabulary=Marked())  # type: ignore[arg-type]
    for context, tokens in ((), [1, *text]), ((1, 5), [1, 5, *text]):
        work = Generate(prompt=TextPrompt(text="Once"), context=context)
        assert prompt_of(work, marked, key=1, seed=7, sampled=()).start.tokens == tokens


@pytest.mark.parametrize(
    ("context", "prompt", "field", "says"),
    [
        ((5, 10**6), TextPrompt(text="a"), "context[1]", "context[1]: token 1000000 is not one"),
        ((5,) * 90, TextPrompt(text="a"), "prompt", "the prompt has at least 91 tokens"),
    ],
)
def test_a_context_that_cannot_be_is_refused(
    language: Language, context: tuple[int, ...], prompt: Prompt, field: str, says: str
) -> None:
    work = Generate(prompt=prompt, context=context)
    with pytest.raises(Refusal) as refused:
        prompt_of(work, language, key=1, seed=7, sampled=(), slot_cells=64)
    problem: Any = refused.value.result["BadRequest"]
    assert (problem["field"], says in problem["message"]) == (field, True)


@pytest.mark.parametrize(
    ("thinking", "classes"),
    [
        (True, {TokenClass.UNDETERMINABLE, TokenClass.REASONING}),
        (False, {TokenClass.CONTENT}),
    ],
)
def test_the_prompt_says_in_which_section_the_answer_begins(
    language: Language, thinking: bool, classes: set[TokenClass]
) -> None:
    assert render(conversation(thinking=thinking), language).start.opening in classes


MARKED = (
    "<think>\nhm\n</think>\n\nUse\n\n<tool_call>\n{"
    '"name": "now", "arguments": {}}'
    "\n</tool_call>\n\nfor x in y:\n    if x:\n        print(x)\n"
)


def written(started: Prompted, text: str, piece_chars: int = 3) -> list[tuple[str, str]]:
    """The classes and texts of an answer that is sampled in pieces; those of a class are joined."""
    results: list[dict[str, object]] = []
    for begin in range(0, len(text), piece_chars):
        piece = text[begin : begin + piece_chars].encode()
        results += started.output.take(piece, ends_turn=False)
    results += started.output.end(Ending(1, "stop", 5, 0))
    joined: list[tuple[str, str]] = []
    for result in results:
        ((tag, value),) = result.items()
        if isinstance(value, str):
            if joined and joined[-1][0] == tag:
                joined[-1] = tag, joined[-1][1] + value
            else:
                joined.append((tag, value))
    return joined


@pytest.mark.parametrize("prompt", [TextPrompt(text="Once"), TokenPrompt(tokens=(5, 6))])
def test_the_answer_to_a_text_is_text_as_the_model_wrote_it(
    language: Language, prompt: Prompt
) -> None:
    assert written(prompted(language, prompt), MARKED) == [("ContentToken", MARKED)]


def test_a_stop_text_is_found_wherever_the_answer_to_a_text_has_it(language: Language) -> None:
    started = prompted(language, TextPrompt(text="Once"), stop=("</think>",))
    assert written(started, MARKED) == [("ContentToken", "<think>\nhm\n")]
    assert started.output.is_complete


def test_paddlers_clients_see_the_sections_of_the_answer_to_a_text(language: Language) -> None:
    work = ContinueFromRawPromptParams("Once", 99)
    started = prompt_of(work, language, key=1, seed=7, sampled=())
    tags = [tag for tag, _ in written(started, MARKED)]
    assert {"ReasoningToken", "ToolCallToken", "ContentToken"} <= set(tags)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": (TOOL,), "tool_choice": "none"}],
    ids=["no tools", "no choice"],
)
def test_what_looks_like_a_call_without_tools_is_content_with_its_marks(
    language: Language, fields: dict[str, object]
) -> None:
    started = prompted(language, conversation(thinking=True, **fields))
    answer = MARKED if started.output.classifier.current is not TokenClass.REASONING else MARKED[8:]
    reasoning, content = written(started, answer)
    assert (reasoning[0], reasoning[1].strip()) == ("ReasoningToken", "hm")
    assert content == ("ContentToken", MARKED[MARKED.index("Use") :])


@pytest.mark.parametrize("thinking", [True, False])
def test_what_looks_like_a_mark_in_a_form_is_the_text_of_a_value(
    language: Language, thinking: bool
) -> None:
    form = '{"a": "<think>, </think> and <tool_call>"}'
    work = Generate(prompt=conversation(thinking=thinking), constraint=AnyJsonGrammar())
    started = prompt_of(work, language, key=1, seed=7, sampled=())
    opening = started.output.classifier.current
    thoughts = {
        TokenClass.CONTENT: "",
        TokenClass.REASONING: "hm</think>",
        TokenClass.UNDETERMINABLE: "<think>hm</think>",
    }[opening]
    assert written(started, thoughts + form)[-1] == ("ContentToken", form)


@pytest.mark.parametrize("asked", ["user", "a", "The user asks", "Hello!"])
@pytest.mark.parametrize(
    ("begun", "section"),
    [("<think>\nThe user asks a", TokenClass.REASONING), ("I am a user", TokenClass.CONTENT)],
)
def test_what_the_client_said_may_stand_in_the_message_that_is_continued(
    language: Language, asked: str, begun: str, section: TokenClass
) -> None:
    prompt = ConversationPrompt(
        messages=({"role": "user", "content": asked}, {"role": "assistant", "content": begun}),
        continue_final_message=True,
        add_generation_prompt=False,
    )
    rendering = render(prompt, language)
    assert rendering.start.prompt_end.endswith(begun)
    assert rendering.classifier.current is section


def test_what_another_agent_sampled_is_known_and_not_shown_again(language: Language) -> None:
    sampled = language.vocabulary.tokenize(" Hello EN", add_special=False, parse_special=True)
    started = prompted(language, conversation(thinking=False), sampled=sampled, stop=("END",))
    assert not started.output.is_complete
    (shown,) = started.output.take(b"D of it", ends_turn=False) or [{}]
    assert shown == {}
    assert started.output.is_complete


def test_an_answer_that_was_complete_when_its_agent_was_lost_is_complete(
    language: Language,
) -> None:
    sampled = language.vocabulary.tokenize(" The END", add_special=False, parse_special=True)
    started = prompted(language, conversation(thinking=False), sampled=sampled, stop=("END",))
    assert started.output.is_complete


def test_paddlers_raw_prompt_is_a_text_to_be_continued(language: Language) -> None:
    theirs = prompt_of(ContinueFromRawPromptParams("Once", 5), language, key=1, seed=7, sampled=[])
    ours = prompted(language, TextPrompt(text="Once"))
    assert theirs.start.tokens == ours.start.tokens
    assert theirs.start.max_tokens == 5
    assert not theirs.output.is_extended
    with pytest.raises(Refusal, match="max_tokens is 0"):
        prompt_of(ContinueFromRawPromptParams("Once", 0), language, key=1, seed=7, sampled=[])


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (conversation(tool_choice="sometimes"), "prompt.tool_choice"),
        (conversation(tool_choice="required"), "prompt.tool_choice"),
        (conversation(tools=(TOOL,), tool_choice="function"), "prompt.tool_name"),
        (conversation(tools=(TOOL,), tool_name="now"), "prompt.tool_name"),
        (conversation(max_reasoning_tokens=-1), "prompt.max_reasoning_tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(
    language: Language, prompt: Prompt, field: str
) -> None:
    with pytest.raises(Refusal) as caught:
        prompted(language, prompt)
    problem = caught.value.result["BadRequest"]
    assert isinstance(problem, dict)
    assert problem["field"] == field


@pytest.mark.parametrize(
    ("url", "ending"),
    [
        (PIXEL, "MultimodalNotSupported"),
        (SAMPLING, "MultimodalNotSupported"),
        ("data:image/png;base64,aGk=", "ImageDecodingFailed"),
        ("data:image/jpeg;base64,!!!not-valid-base64!!!", "ImageDecodingFailed"),
        ("data:image/jpegbase64,abc123", "ImageDecodingFailed"),
        ("https://example.com/image.jpg", "ImageDecodingFailed"),
        ("", "ImageDecodingFailed"),
    ],
)
def test_a_model_without_eyes_refuses_images_and_says_first_what_is_wrong_with_them(
    language: Language, url: str, ending: str
) -> None:
    look = {"type": "image_url", "image_url": {"url": url}}
    shown = conversation(messages=({"role": "user", "content": [look]},))
    with pytest.raises(Refusal) as caught:
        prompted(language, shown)
    assert [*caught.value.result] == [ending]


def test_calls_have_the_same_ids_on_every_agent_and_no_others(language: Language) -> None:
    asked = conversation(tools=(TOOL,), thinking=False)
    form = render(asked, language).start.form

    def ids(seed: int) -> list[str]:
        reader = call_reader(asked, form, seed=seed)
        assert reader is not None
        reader.feed('{"name": "now", "arguments": {}}\n{"name": "now", "arguments": {}}')
        reader.close_section()
        return [delta.id for delta in reader.take_deltas() if delta.id is not None]

    assert len(set(ids(1))) == 2
    assert ids(1) == ids(1)
    assert not set(ids(1)) & set(ids(2))


def test_calls_that_are_wanted_raw_are_not_read(language: Language) -> None:
    form = render(conversation(), language).start.form
    for prompt in (
        TextPrompt(text="a"),
        conversation(),
        conversation(tools=(TOOL,), raw_tool_calls=True),
        conversation(tools=(TOOL,), tool_choice="none"),
    ):
        assert call_reader(prompt, form, seed=1) is None
