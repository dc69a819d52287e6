"""The formats that are found for the templates llama.cpp ships, and answers in their own words.

Give the folder as ``PADDLER_TRIO_TEMPLATES``: llama-cpp-python's source, or its
``vendor/llama.cpp/models/templates``. A template that renders tool calls of earlier turns is the
judge of how its model writes them: what it renders has to be read back as what it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paddler_trio.language.answers.format_detection import format_of
from paddler_trio.language.answers.turns import rendered_prompt, turn_ends_of, without_turn_end
from paddler_trio.language.answers.whole_answer import AnswerReader
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.language.templates.token_escaping import unescaped
from paddler_trio.wire.trio.work import ConversationPrompt

TEMPLATES = os.environ.get("PADDLER_TRIO_TEMPLATES")
FAMILIES: dict[str, list[str]] = {
    "apertus": ["Apertus-8B-Instruct"],
    "apriel": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    "command-r": ["CohereForAI-c4ai-command-r-plus-tool_use"],
    "command-r7b": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "deepseek-dsml": [
        "deepseek-ai-DeepSeek-V3.2",
        "deepseek-ai-DeepSeek-V4-Flash-0731",
        "deepseek-ai-DeepSeek-V4",
    ],
    "deepseek-r1": [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "llama-cpp-deepseek-r1",
    ],
    "deepseek-v3.1": ["deepseek-ai-DeepSeek-V3.1"],
    "firefunction": ["fireworks-ai-llama-3-firefunction-v2"],
    "functionary-v3.1": ["meetkai-functionary-medium-v3.1"],
    "functionary-v3.2": ["meetkai-functionary-medium-v3.2"],
    "gemma-4": ["google-gemma-4-31B-it-interleaved", "google-gemma-4-31B-it"],
    "gigachat-3": ["GigaChat3-10B-A1.8B"],
    "gigachat-3.1": ["GigaChat3.1-10B-A1.8B"],
    "glm": [
        "GLM-4.6",
        "GLM-4.7-Flash",
        "Spark2.5",
        "inclusionai-ling-3.0-flash",
        "poolside-Laguna-S-2.1",
        "poolside-Laguna-XS-2.1",
        "poolside-Laguna-XS.2",
    ],
    "gpt-oss": ["openai-gpt-oss-120b"],
    "granite-3": ["ibm-granite-granite-3.3-2B-Instruct"],
    "hermes": [
        "Bielik-11B-v3.0-Instruct",
        "MiMo-VL",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "Qwen-QwQ-32B",
        "Qwen-Qwen2.5-7B-Instruct",
        "Qwen-Qwen3-0.6B",
        "Reka-Edge",
        "ibm-granite-granite-4.0",
        "ibm-granite-granite-4.1",
    ],
    "hunyuan-3": ["tencent-Hy3"],
    "json": [
        "HuggingFaceTB-SmolLM3-3B",
        "google-gemma-2-2b-it",
        "llama-cpp-rwkv-world",
        "microsoft-Phi-3.5-mini-instruct",
    ],
    "kimi-k2": ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    "kimi-k3": ["Kimi-K3"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"],
    "llama-3": [
        "meta-llama-Llama-3.1-8B-Instruct",
        "meta-llama-Llama-3.2-3B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    "minicpm": ["openbmb-MiniCPM5-1B"],
    "minimax-m2": ["MiniMax-M2"],
    "minimax-m3": ["MiniMax-M3"],
    "mistral": [
        "Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "unsloth-mistral-Devstral-Small-2507",
    ],
    "muse": ["muse-glimmer"],
    "nemotron": ["NVIDIA-Nemotron-Nano-v2"],
    "qwen-coder": [
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "Qwen3-Coder",
        "Qwen3.5-4B",
        "StepFun3.5-Flash",
    ],
    "seed-oss": ["ByteDance-Seed-OSS"],
    "solar-open": ["upstage-Solar-Open-100B"],
    "tool-calls-tag": ["MiniMax-M1"],
}
NOT_READ_BACK = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "renders only tools that forbid more arguments",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "opens a further turn after the last one",
    "HuggingFaceTB-SmolLM3-3B": "renders no earlier calls",
    "LFM2-8B-A1B": "renders no earlier calls",
    "LFM2.5-Instruct": "renders no earlier calls",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "renders no earlier calls",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "opens a further turn after the calls",
    "fireworks-ai-llama-3-firefunction-v2": "opens a further turn after the calls",
    "ibm-granite-granite-3.3-2B-Instruct": "renders no earlier calls",
}
ARGUMENTS: dict[str, Any] = {
    "city": 'São "P" <b>',
    "days": 5,
    "wind": True,
    "area": {"k": [1, "x"]},
    "names": ["a", "b c"],
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "d"},
                "days": {"type": "integer", "description": "d"},
                "wind": {"type": "boolean", "description": "d"},
                "area": {"type": "object", "description": "d"},
                "names": {"type": "array", "items": {"type": "string"}, "description": "d"},
            },
            "required": ["city"],
        },
    },
}
USER = {"role": "user", "content": "How is it?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdefgh1",
            "type": "function",
            "function": {"name": "weather", "arguments": ARGUMENTS},
        }
    ],
}


def template_files() -> list[Path]:
    if TEMPLATES is None:
        return []
    inside = Path(TEMPLATES) / "vendor" / "llama.cpp" / "models" / "templates"
    return sorted((inside if inside.is_dir() else Path(TEMPLATES)).glob("*.jinja"))


FILES = [pytest.param(file, id=file.stem) for file in template_files()]


@pytest.mark.parametrize("file", FILES)
def test_every_template_has_the_format_of_its_family(file: Path) -> None:
    model = ModelTemplate.compile(file.read_text(encoding="utf-8"))
    expected = next((name for name, files in FAMILIES.items() if file.stem in files), None)
    assert expected is None or format_of(model.template).name == expected


@pytest.mark.parametrize("file", FILES)
def test_a_call_that_a_template_renders_is_read_back(file: Path) -> None:
    if file.stem in NOT_READ_BACK:
        pytest.skip(NOT_READ_BACK[file.stem])
    model = ModelTemplate.compile(file.read_text(encoding="utf-8"))
    templates = ModelTemplates(default=model, bos_token="<s>", eos_token="</s>")
    question = ConversationPrompt(messages=(USER,), tools=(TOOL,), thinking=True)
    answered = ConversationPrompt(
        messages=(USER, CALL), tools=(TOOL,), thinking=True, add_generation_prompt=False
    )
    text, start = rendered_prompt(question, prepare_conversation(question, templates))
    prompt = unescaped(text)
    whole = unescaped(prepare_conversation(answered, templates).text(add_generation_prompt=False))
    shared = next(
        (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt)
    )
    # An earlier turn may go on otherwise than the prompt of a new one: back to the last whole tag.
    shared = prompt.rindex("<", 0, shared + 1) if "<" in prompt[shared - 1 : shared] else shared
    end = start.prompt_end[: max(0, len(start.prompt_end) - (len(prompt) - shared))]
    raw = without_turn_end(whole[shared:], turn_ends_of(model.template, start.form))
    reader = AnswerReader(start.form, [TOOL], prompt_end=end)
    for character in raw:
        reader.feed(character)
    answer = reader.end()
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("weather", ARGUMENTS)]
    assert (answer.content, answer.reasoning, answer.problems) == ("", "", ())
