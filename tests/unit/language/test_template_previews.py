"""A template is tried on a conversation before it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from paddler_trio.balancer.front.template_routes import UNKNOWN_TO_AGENT
from paddler_trio.language.model_language import Language, templates_of
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.templates.chat_template import MAX_SOURCE_CHARS
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.processes.preparation.jobs import prepare
from paddler_trio.processes.preparation.preparation_messages import Answered, Job
from paddler_trio.processes.preparation.template_preview import previewed
from paddler_trio.wire.engine.engine_pipe import Ready
from paddler_trio.wire.engine.media import NO_SENSES
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.model_questions import PreviewTemplate
from paddler_trio.wire.trio.request_frame import read_head
from vision_models import data_uri, encoded, picture

READY = Ready(cells=2048, n_batch=512, n_ctx_train=2048, n_vocab=1536)
HELLO: Mapping[str, object] = {"role": "user", "content": "Hello!"}
TOOL: Mapping[str, object] = {"type": "function", "function": {"name": "now"}}
NAMES_OF_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"


@pytest.fixture(scope="module")
def language(vocabulary: Vocabulary) -> Language:
    source = vocabulary.chat_template()
    assert source is not None
    templates = templates_of(vocabulary, source, is_override=False)
    return Language(vocabulary, templates, InferenceParameters(), "fingerprint")


def preview(
    language: Language, chat_template: str | None, *messages: Mapping[str, object]
) -> dict[str, object]:
    question = PreviewTemplate(
        messages=messages or (HELLO,), tools=(TOOL,), chat_template=chat_template
    )
    return previewed(question, language, senses=NO_SENSES)


def test_another_template_takes_the_place_of_the_models(language: Language) -> None:
    shown = preview(language, "{{ bos_token }}<{{ messages[0].content }}>" + NAMES_OF_TOOLS)
    assert shown["prompt"] == f"{language.templates.bos_token}<Hello!>now"
    num_tokens = shown["num_tokens"]
    assert isinstance(num_tokens, int)
    assert 0 < num_tokens < 20
    assert language.templates.default.template.source == language.vocabulary.chat_template()


def test_without_a_template_it_is_the_one_in_force(language: Language) -> None:
    source = language.vocabulary.chat_template()
    assert source is not None
    assert preview(language, None) == preview(language, source)
    assert "Hello!" in str(preview(language, None)["prompt"])


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("one\n{{ messages[0 }}", 2, "does not compile: line 2: unexpected '}'"),
        ("one\n\n{{ raise_exception('no tools here') }}", 3, "no tools here (line 3)"),
        ("{% macro f(m) %}\n{{ m.x.y }}\n{% endmacro %}\n{{ f(messages[0]) }}", 2, "(line 2)"),
        ("a\n{{ 1 // 0 }}", 2, "ZeroDivisionError"),
        ("x" * (MAX_SOURCE_CHARS + 1), None, f"the limit is {MAX_SOURCE_CHARS}"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_template_has_a_line_and_a_reason(
    language: Language, source: str, line: int | None, words: str
) -> None:
    problem = preview(language, source)
    assert words in str(problem["problem"])
    if line is not None:
        assert problem["line"] == line


def test_a_message_that_is_none_is_named_and_has_no_line(language: Language) -> None:
    problem = preview(language, None, {"content": "who?"})
    assert problem["line"] is None
    assert "messages[0]" in str(problem["problem"])


def test_an_agent_that_does_not_know_the_question_refuses_it_as_malformed(
    language: Language,
) -> None:
    """So it is with every question that is newer than an agent; the balancer goes by the words."""
    text = '{"Trio":{"Ask":{"id":"q.1","question":{"FromTheFuture":{"messages":[]}}}}}'
    frame = read_head(text, speaks_trio=True)
    assert frame is not None
    answered = prepare(Job(frame, 0, READY), language)
    assert isinstance(answered, Answered)
    answer = json.loads(answered.frame)["Trio"]["Answer"]
    assert answer["code"] == 400
    assert answer["problem"].startswith(UNKNOWN_TO_AGENT)


def test_an_image_for_a_model_that_sees_none_is_refused_as_in_a_request(
    language: Language,
) -> None:
    picture_part = {"type": "image_url", "image_url": {"url": data_uri(encoded(picture((9, 9))))}}
    with pytest.raises(Refusal):
        preview(language, None, {"role": "user", "content": [picture_part]})
