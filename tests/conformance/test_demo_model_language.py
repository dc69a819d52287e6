"""The language half of the agent on everything the bundled model was evaluated with.

The prompts are the ones the model was trained on, the answers are recorded ones: what a client
sees of them has to be what the evaluation counted as passed.
"""

import codecs
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import jinja2
import pytest

import paddler_trio.models
from paddler_trio.language.answers.automaton import Automaton, TokenClass
from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.answers.tool_calls import Parsed, ToolCallOutcome, ToolCallReader
from paddler_trio.language.answers.turns import prompt_end
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.language.vocabulary import Vocabulary

EVALUATION = Path(__file__).parents[2] / "tools" / "demo_model" / "evaluation.json"
MODEL = Path(paddler_trio.models.__file__).with_name("paddler-demo.gguf")


class Case(TypedDict, total=False):
    id: str
    thinking: bool
    raw: bool
    messages: list[dict[str, object]]
    tools: list[dict[str, object]]
    check: dict[str, object]
    output: str
    passed: bool


CASES: list[Case] = json.loads(EVALUATION.read_text(encoding="utf-8"))["cases"]
CHATS = [case for case in CASES if not case.get("raw")]
PASSED = [case for case in CHATS if case["passed"]]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    vocabulary = Vocabulary.load(MODEL)
    yield vocabulary
    vocabulary.close()


@pytest.fixture(scope="module")
def template(vocabulary: Vocabulary) -> ChatTemplate:
    source = vocabulary.chat_template()
    assert source is not None
    return ChatTemplate.compile(source)


@pytest.fixture(scope="module")
def plain_template(vocabulary: Vocabulary) -> jinja2.Template:
    """The template as the model's own evaluation compiled it."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(vocabulary.chat_template() or "")


def render(
    template: ChatTemplate, vocabulary: Vocabulary, case: Case, *, add_generation_prompt: bool
) -> str:
    return template.render(
        case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=add_generation_prompt,
        enable_thinking=case["thinking"],
        bos_token=vocabulary.bos_text,
        eos_token=vocabulary.eos_text,
    )


@pytest.mark.parametrize("case", CHATS, ids=lambda case: case["id"])
def test_the_prompt_is_the_one_the_model_was_evaluated_with(
    vocabulary: Vocabulary, template: ChatTemplate, plain_template: jinja2.Template, case: Case
) -> None:
    prompt = render(template, vocabulary, case, add_generation_prompt=True)
    assert prompt == plain_template.render(
        messages=case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=True,
        enable_thinking=case["thinking"],
    )
    tokens = vocabulary.tokenize_prompt(prompt)
    assert b"".join(vocabulary.token_bytes(t, special=True) for t in tokens) == prompt.encode()


@pytest.mark.parametrize("case", PASSED, ids=lambda case: case["id"])
def test_a_recorded_answer_falls_apart_into_what_its_check_expects(
    vocabulary: Vocabulary, template: ChatTemplate, case: Case
) -> None:
    form = format_of(template)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    classifier = Automaton(form.rules)
    classifier.begin_with(
        prompt_end(
            render(template, vocabulary, case, add_generation_prompt=True),
            render(template, vocabulary, case, add_generation_prompt=False),
            form,
        )
    )
    opening = classifier.current
    assert opening is (TokenClass.UNDETERMINABLE if case["thinking"] else TokenClass.CONTENT)

    calls = ToolCallReader(case.get("tools", []))
    said: dict[TokenClass, str] = defaultdict(str)
    outcomes: list[ToolCallOutcome] = []
    tokens = vocabulary.tokenize(case["output"], add_special=False, parse_special=True)
    steps = [decoder.decode(vocabulary.token_bytes(token, special=True)) for token in tokens]
    pieces = [
        piece
        for step in [*steps, decoder.decode(b"", final=True)]
        for piece in classifier.feed(step)
    ]
    for piece in pieces + classifier.flush():
        said[piece.token_class] += piece.text
        outcomes.extend(calls.feed_piece(piece))
    outcomes.extend(calls.close_section())

    answer = case["output"]
    if case["thinking"]:
        thought, answer = answer.split("</think>", 1)
        assert said[TokenClass.REASONING] == thought.removeprefix("<think>")
    else:
        assert said[TokenClass.REASONING] == ""
    assert said[TokenClass.UNDETERMINABLE] == ""
    expected = case["check"].get("tool_calls")
    if expected is None:
        assert said[TokenClass.CONTENT] == answer
        assert outcomes == []
    else:
        assert said[TokenClass.CONTENT].strip() == ""
        parsed = [call for o in outcomes if isinstance(o, Parsed) for call in o.calls]
        assert [{"name": call.name, "arguments": call.arguments} for call in parsed] == expected
        assert all(isinstance(outcome, Parsed) for outcome in outcomes)
