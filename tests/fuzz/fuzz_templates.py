"""Random templates, messages and conversations: a prompt or the typed refusal, in a fair time.

    python tests/fuzz/fuzz_templates.py --inputs 1000000 --seed 1

A crash, any other exception, an input over a hundred times its fair cost, and a prompt in which a
text of a message became a control text end the run with the input printed.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import attrs
from fuzzing import FairCost, Trial, command
from fuzzing import fuzz as try_all

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.templates.chat_messages import read_messages, read_tools
from paddler_trio.language.templates.chat_template import ChatTemplate
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.language.templates.token_escaping import ControlTokenEscaping, unescaped
from paddler_trio.wire.trio.work import ConversationPrompt

sys.path.append(str(Path(__file__).parents[1] / "conformance"))

from own_templates import OWN_TEMPLATES

FAIR = FairCost(seconds=0.002, seconds_per_char=0.000_005)

_PIECES = [
    *"'()[]{}\n",
    *("{{ ", " }}", "{% ", " %}", "{%- ", " -%}", "{# ", " #}", "messages", "tools", ".role"),
    *(".content", "['content']", " ~ ", " + ", " * ", " % ", " if ", " else ", "if ", "elif "),
    *("else", "endif", "for m in ", "endfor", "set x = ", "set ns.x = ", "endset", "macro f(a)"),
    *("endmacro", "f(1)", "call f(2)", "endcall", " | tojson", " | trim", " | join(',')"),
    *(" | length", " | list", " | map('upper')", " | string", "loop.index", "loop.last"),
    *("range(3)", "namespace(x=1)", "ns", "m", "x", "1", "99999", "true", " is defined"),
    *(" is string", " in ", " == ", " not ", " and ", "none", "raise_exception('x')", "break"),
    *("continue", "generation", "endgeneration", ".split(',')", ".items()", ".format(1)"),
    *("filter upper", "endfilter", "raw", "endraw", "with x = 1", "endwith", "x.append(1)"),
    "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}",
    "{% if tools %}{{ tools | tojson }}{% endif %}",
    "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m %}{% endfor %}",
    "{% for i in range(999) %}",
]
_CONTROLS = ("<|im_start|>", "<|im_end|>", "</s>", "[INST]")
_WORDS = [
    *_CONTROLS, "<|im_", "end|>", "<", ">", "[", "]", "", " ", "\n", "é", "\U0001f600", "a", "None",
    "{{ 1 }}", "</think>", "\ud800", "x" * 200,
]  # fmt: skip
_FIELDS = ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "type", "text",
           "function", "arguments", "parameters", "id", "image_url", "x"]  # fmt: skip
# what asks texts for control texts is answered that there are none: no way to compare it
_ASKING = ("texts", "calls")
_MODELS = [
    ModelTemplate.compile(source) for name, source in OWN_TEMPLATES.items() if name not in _ASKING
]


def random_text(dice: random.Random) -> str:
    return "".join(dice.choice(_WORDS) for _ in range(dice.randrange(5)))


def random_value(dice: random.Random, depth: int) -> object:
    kind = dice.randrange(8 if depth else 5)
    if kind < 2:
        return random_text(dice)
    if kind < 5:
        return dice.choice([None, True, 0, -1.5, 10**30])
    if kind == 5:
        return [random_value(dice, depth - 1) for _ in range(dice.randrange(4))]
    return {dice.choice(_FIELDS): random_value(dice, depth - 1) for _ in range(dice.randrange(5))}


def random_message(dice: random.Random) -> dict[str, object]:
    """One that is right, most of the time."""
    role = dice.choice(["system", "developer", "user", "assistant", "tool", "x"])
    message: dict[str, object] = {"role": role, "content": random_text(dice)}
    if dice.random() < 0.2:
        message["content"] = [{"type": "text", "text": random_text(dice)} for _ in range(2)]
    if role == "assistant" and dice.random() < 0.5:
        arguments = {random_text(dice): random_value(dice, 2)}
        call = {"id": random_text(dice), "function": {"name": "f", "arguments": arguments}}
        message["tool_calls"] = [call]
        message["content"] = dice.choice([None, "", random_text(dice)])
    if dice.random() < 0.1:
        message[dice.choice(_FIELDS)] = random_value(dice, 2)
    return message


def try_template(dice: random.Random) -> Trial:
    source = "".join(dice.choice(_PIECES) for _ in range(dice.randrange(16)))
    return lambda: _render(source), source


def _render(source: str) -> None:
    ChatTemplate.compile(source).render(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
        max_render_s=0.05,
    )


def try_messages(dice: random.Random) -> Trial:
    value = random_value(dice, 4)
    if dice.random() < 0.6:
        value = [random_message(dice) for _ in range(dice.randrange(4))]
    read = dice.choice([read_messages, read_tools])
    return lambda: read(value), repr(value)


def try_conversation(dice: random.Random) -> Trial:
    model = dice.choice(_MODELS)
    request = ConversationPrompt(
        messages=tuple(random_message(dice) for _ in range(dice.randrange(1, 5))),
        tools=({"type": "function", "function": {"name": "f", "description": random_text(dice)}},),
        thinking=dice.choice([None, True, False]),
        template_kwargs={"note": random_text(dice)},
        continue_final_message=dice.random() < 0.1,
    )
    return lambda: _prompt(request, model), f"{request!r} in {model.template.source!r}"


def _prompt(request: ConversationPrompt, model: ModelTemplate) -> None:
    careful = ModelTemplates(default=model, escaping=ControlTokenEscaping(_CONTROLS), eos_token="")
    trusting = attrs.evolve(careful, escaping=ControlTokenEscaping(()))
    prompt = prepare_conversation(request, careful).text(add_generation_prompt=True)
    written = prepare_conversation(request, trusting).text(add_generation_prompt=True)
    assert unescaped(prompt) == written
    own = [m for m in request.messages if m.get("role") == "assistant"]
    if not any(control in repr(own) for control in _CONTROLS):
        parsed = "".join(s.text for s in careful.escaping.cut(prompt) if s.parse_special)
        # no template among ours prints one of these itself
        assert not any(control in parsed for control in _CONTROLS)


TRIALS = (try_template, try_messages, try_conversation)


def fuzz(inputs: int, seed: int, *, judges_cost: bool = False) -> Counter[str]:
    """Try so many inputs; what came of them, by kind."""
    return try_all(
        TRIALS,
        inputs=inputs,
        seed=seed,
        refusals=(ChatTemplateError,),
        fair=FAIR if judges_cost else None,
    )


if __name__ == "__main__":
    command(fuzz, __doc__)
