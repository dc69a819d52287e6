"""Prompts are, to the byte, what Hugging Face's transformers makes of the same conversation.

Always over templates of our own; with ``PADDLER_TRIO_TEMPLATES`` naming a folder of ``.jinja``
files, or an unpacked llama-cpp-python, over all of those too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_templates import OWN_TEMPLATES
from template_conversations import EVERY, Conversation, call

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.capabilities import TemplateCapabilities
from paddler_trio.language.templates.chat_messages import read_messages, read_tools
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.language.templates.kept_words import first_loss
from paddler_trio.language.templates.token_escaping import ControlTokenEscaping, unescaped
from paddler_trio.wire.trio.work import ConversationPrompt

TEMPLATES = os.environ.get("PADDLER_TRIO_TEMPLATES")
BOS, EOS = "<s>", "</s>"
CONTROLS = [BOS, EOS, "<|im_start|>", "<|im_end|>", "[INST]", "<|eot_id|>", "<start_of_turn>"]
CONTROL_TEXT = re.compile(r"<[|｜][^<>\n{}]{1,40}[|｜]>|<\|[a-z_]+>|\[/?[A-Z_]{3,}\]|</?[a-z_]+>")  # noqa: RUF001
"""What looks like a control token in the source of a template."""


def template_files() -> Iterator[Path]:
    if TEMPLATES is not None:
        inside = Path(TEMPLATES) / "vendor" / "llama.cpp" / "models" / "templates"
        yield from sorted((inside if inside.is_dir() else Path(TEMPLATES)).glob("*.jinja"))


SOURCES = [pytest.param(source, id=name) for name, source in OWN_TEMPLATES.items()] + [
    pytest.param(file.read_text(), id=file.stem) for file in template_files()
]


@pytest.fixture(scope="module")
def judge() -> Any:
    import tokenizers  # slow: not while tests are collected
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0}, unk_token="x"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=BOS, eos_token=EOS
    )


def judged(judge: Any, source: str, conversation: Conversation, **options: Any) -> str | None:
    """What transformers makes of it; None if it cannot."""
    try:
        prompt = judge.apply_chat_template(
            conversation.messages,
            chat_template=source,
            tools=conversation.tools,
            documents=conversation.documents,
            tokenize=False,
            **options,
            **conversation.kwargs,
        )
    except Exception:  # noqa: BLE001  # a template may raise anything
        return None
    assert isinstance(prompt, str)
    return prompt


def ours(
    model: ModelTemplate, conversation: Conversation, *, add: bool = False, **fields: Any
) -> str | None:
    """The way of every request; None if the template refuses."""
    variables = dict(conversation.kwargs)
    if conversation.documents is not None:
        variables["documents"] = conversation.documents
    request = ConversationPrompt(
        messages=tuple(conversation.messages),
        tools=tuple(conversation.tools or ()),
        template_kwargs=variables,
        add_generation_prompt=add,
        **fields,
    )
    templates = ModelTemplates(
        default=model, bos_token=BOS, eos_token=EOS, escaping=ControlTokenEscaping(CONTROLS)
    )
    try:
        return unescaped(prepare_conversation(request, templates).text(add_generation_prompt=add))
    except ChatTemplateError:
        return None


def is_kept(conversation: Conversation, prompt: str) -> bool:
    """Whether a prompt has every text and every call, in order."""
    messages, tools = read_messages(conversation.messages), read_tools(conversation.tools)
    return first_loss(messages, tools, prompt) is None


def reason_to_differ(
    conversation: Conversation, capabilities: TemplateCapabilities, expected: str
) -> str | None:
    """The listed reasons: what the template would lose or print as Python is said otherwise."""
    if not is_kept(conversation, expected):
        return "a text or a call would be lost or moved: said otherwise, or refused"
    switch = capabilities.thinking
    if switch is not None and switch.needs_default:
        return "the template takes it that its caller says whether to think: yes"
    if conversation.tools and not capabilities.tools:
        return "the tools would be lost: a system text"
    for message in conversation.messages:
        role, content = message["role"], message.get("content")
        if role == "developer" and not capabilities.developer_role:
            return "the role developer would be lost: system"
        if role == "system" and not capabilities.system_role:
            return "the role system would be lost: on top of the first question"
        if isinstance(content, list) and role not in capabilities.parts_content:
            return "parts would be lost or printed as a list: joined"
        if isinstance(content, str) and role not in capabilities.string_content:
            return "a string would be lost: one part"
        if (role == "tool" or message.get("tool_calls")) and not capabilities.tool_role:
            return "results of tools would be lost: a user turn"
        for each in message.get("tool_calls") or []:
            form = "string" if isinstance(each["function"]["arguments"], str) else "other"
            if capabilities.arguments not in ("either", form):
                return "arguments would be printed in the wrong quotes: the other form"
    return None


def test_the_judge_runs_over_the_templates_it_was_given() -> None:
    if TEMPLATES is None:
        pytest.skip("PADDLER_TRIO_TEMPLATES names no folder of templates: ours alone were judged")
    assert len(list(template_files())) > 0


@pytest.mark.parametrize("source", SOURCES)
def test_prompts_are_equal_or_there_is_a_listed_reason(judge: Any, source: str) -> None:
    model = ModelTemplate.compile(source)
    judged_prompts = 0
    for conversation in EVERY:
        for add in (True, False):
            expected = judged(judge, source, conversation, add_generation_prompt=add)
            if expected is None:
                continue
            judged_prompts += 1
            prompt = ours(model, conversation, add=add)
            if prompt != expected:
                assert reason_to_differ(conversation, model.capabilities, expected), (
                    conversation.name
                )
                assert prompt or not is_kept(conversation, expected), conversation.name
    if not model.template.variables & {"functions", "custom_tools"} and "tools" not in source:
        assert judged_prompts > 0


@pytest.mark.parametrize(
    "source", [each for each in SOURCES if each.id not in ("texts", "calls")]
)  # two of ours cut what a user says at control texts, and count its letters
def test_control_tokens_spelled_in_messages_change_no_letter_of_the_prompt(source: str) -> None:
    model = ModelTemplate.compile(source)
    spelled = sorted(set(CONTROL_TEXT.findall(source))) or CONTROLS
    careful = ModelTemplates(default=model, escaping=ControlTokenEscaping(spelled))
    trusting = ModelTemplates(default=model)
    for control in spelled:
        text = f"{control} and\n{control}"
        tool = {"name": "f", "description": text, "parameters": {"properties": {"k": {"x": text}}}}
        request = ConversationPrompt(
            messages=(
                {"role": "user", "content": text},
                {"role": "assistant", "content": "", "tool_calls": [call("f", {"k": "v"})]},
                {"role": "tool", "tool_call_id": "callid001", "name": "f", "content": text},
            ),
            tools=({"type": "function", "function": tool},),
        )
        prompts: list[str | None] = []
        for templates in (careful, trusting):
            try:
                prompt = prepare_conversation(request, templates).text(add_generation_prompt=True)
                prompts.append(unescaped(prompt))
            except ChatTemplateError:
                prompts.append(None)
        assert prompts[0] == prompts[1]


@pytest.mark.parametrize("source", SOURCES)
def test_a_message_that_is_to_be_continued_is_left_open_at_the_same_place(
    judge: Any, source: str
) -> None:
    model = ModelTemplate.compile(source)
    for final in ("It is ", "It is\n\n", "x"):
        messages = [
            {"role": "user", "content": "How much?"},
            {"role": "assistant", "content": final},
        ]
        conversation = Conversation("open end", messages)
        expected = judged(judge, source, conversation, continue_final_message=True)
        if expected is not None and is_kept(conversation, expected):
            assert ours(model, conversation, continue_final_message=True) == expected


@pytest.mark.parametrize("source", SOURCES)
def test_what_the_template_itself_does_is_the_same_without_any_adaptation(
    judge: Any, source: str
) -> None:
    template = ChatTemplate.compile(source)
    for conversation in EVERY:
        expected = judged(judge, source, conversation, add_generation_prompt=True)
        messages = read_messages(conversation.messages)
        if expected is not None:
            variables = dict(conversation.kwargs)
            assert expected == template.render(
                messages,
                tools=conversation.tools,
                documents=conversation.documents,
                add_generation_prompt=True,
                enable_thinking=variables.pop("enable_thinking", None),
                bos_token=BOS,
                eos_token=EOS,
                extra=variables,
            )


def test_the_template_for_tools_is_chosen_as_transformers_does(judge: Any) -> None:
    sources = {"default": "default", "tool_use": "for tools", "rag": "rag"}
    templates = ModelTemplates(
        default=ModelTemplate.compile(sources["default"]),
        named={name: ModelTemplate.compile(sources[name]) for name in ("tool_use", "rag")},
    )
    judge.chat_template = sources
    try:
        for tools in (None, [{"type": "function", "function": {"name": "f"}}]):
            request = ConversationPrompt(
                messages=({"role": "user", "content": "hi"},), tools=tuple(tools or ())
            )
            prompt = prepare_conversation(request, templates).text(add_generation_prompt=False)
            assert prompt == judge.apply_chat_template(
                [{"role": "user", "content": "hi"}], tools=tools, tokenize=False
            )
    finally:
        judge.chat_template = None
