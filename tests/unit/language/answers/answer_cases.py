# ruff: noqa: E501, RUF001 - raw answers are one line each, in the characters their families use
"""Answers as models of many families write them, and what they mean.

The templates are only what a family is known by; the raw texts are ours, in the families' format.
"""

from __future__ import annotations

from typing import Any

import attrs

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "wind": {"type": "boolean"},
                    "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "area": {"type": "object"},
                    "hours": {"type": "array", "items": {"type": "integer"}},
                    "place": {
                        "anyOf": [
                            {"type": "array", "items": {"type": "string"}},
                            {"$ref": "#/$defs/place"},
                        ]
                    },
                },
                "required": ["city"],
                "$defs": {
                    "place": {
                        "type": "object",
                        "properties": {"zip": {"type": "string"}, "floor": {"type": "integer"}},
                    }
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    {
        "type": "function",
        "function": {
            "name": "python",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    },
]
CODE = 'import math\nprint(f"{math.pi}", {"a": [1]})'
BERN = {"city": "Bern"}
ALL = {
    "city": 'Z"ü\nrich',
    "days": 3,
    "wind": True,
    "units": None,
    "area": {"km": [1, 2.5]},
    "hours": [6, 18],
}
ALL_JSON = (
    '{"city": "Z\\"ü\\nrich", "days": 3, "wind": true, "units": null, '
    '"area": {"km": [1, 2.5]}, "hours": [6, 18]}'
)


@attrs.frozen(kw_only=True)
class Case:
    """``calls``: names and arguments; ``ids`` where the model writes them."""

    family: str
    template: str
    raw: str
    prompt_end: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, object], ...] = ()
    ids: tuple[str, ...] = ()


def tags(prefix: str, one: str, *, blank: str = "\n") -> str:
    """All arguments between tags; ``one`` has places for a key and a value."""
    values = {
        "city": 'Z"ü\nrich',
        "days": "3",
        "wind": "true",
        "units": "null",
        "area": '{"km": [1, 2.5]}',
        "hours": "[6, 18]",
    }
    return prefix + blank.join(one.format(key=key, value=value) for key, value in values.items())


HERMES = "<tool_call>{}</tool_call><think></think>"
QWEN_CODER = "<tool_call><function={}><parameter={}></parameter></function></tool_call></think>"
GLM = "<tool_call>{}<arg_key>{}</arg_key><arg_value></arg_value></tool_call><think>"
MISTRAL = "[TOOL_CALLS]{}[ARGS]{}[THINK][/THINK]"
DSML = "<｜DSML｜function_calls><｜DSML｜invoke><think></think>"
R1 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>```json</think>"
V3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜></think>"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_argument_begin|></think>"
COHERE = "<|START_ACTION|><|END_ACTION|><|START_RESPONSE|><|END_RESPONSE|><|START_THINKING|>"
LLAMA = """<|start_header_id|>{'"parameters": '}<|python_tag|><|eom_id|>"""
HARMONY = "<|start|><|channel|><|message|>"
GEMMA = "<|tool_call>call:{}<tool_call|><|channel>thought<channel|>"
MINIMAX = '<minimax:tool_call><invoke name=""></minimax:tool_call><think></think>'
M3 = "]<]minimax[>[<tool_call><mm:think></mm:think>"
LFM = "<|tool_call_start|>[]<|tool_call_end|><think></think>"
KIMI_K3 = "<|open|>think<|sep|><|close|>think<|sep|>"
MUSE = "<atem:function_calls><|message|><|start|>"
SOLAR = "<|tool_call:begin|><|tool_calls|><|calls|>"
HYPERCLOVA = "<|im_start|>assistant/think <|im_start|>assistant -> tool/function_call"
FUNCTIONARY = ">>>all\n<|start_header_id|>"
END = "<｜tool▁call▁end｜>"

CASES = [
    Case(
        family="hermes",
        template=HERMES,
        raw="<think>\nhm, <tool_call>{} is how?\n</think>\n\nI look.\n"
        f'<tool_call>\n{{"name": "weather", "arguments": {ALL_JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        reasoning="hm, <tool_call>{} is how?",
        content="I look.",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="hermes",
        template=HERMES,
        prompt_end="<|im_start|>assistant\n<think>\n",
        raw="deep\nthought\n</think>\n\nForty-two.",
        reasoning="deep\nthought",
        content="Forty-two.",
    ),
    Case(
        family="hermes",
        template=HERMES,
        prompt_end="<|im_start|>assistant\n<think>\n\n</think>\n\n",
        raw="  <b>Yes</b> & no <tool",
        content="<b>Yes</b> & no <tool",
    ),
    Case(
        family="hermes",
        template=HERMES,
        prompt_end="<think>\n",
        raw="never closed <tool_call>",
        reasoning="never closed <tool_call>",
    ),
    Case(
        family="hermes",
        template=HERMES,
        raw="so it is 4\n</think>4",
        reasoning="so it is 4",
        content="4",
    ),
    Case(
        family="hermes",
        template=HERMES,
        raw='<tool_call>{"name": "now", "arguments": "{\\"a\\": \\"\\\\u00fc\\"}"}</tool_call>',
        calls=(("now", {"a": "ü"}),),
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        prompt_end="<think>\n",
        raw="I should look.\n<tool_call>\n"
        + tags("<function=weather>\n", "<parameter={key}>\n{value}\n</parameter>")
        + "\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        reasoning="I should look.",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        raw="Sure.\n<function=weather>\n<parameter=city>\n\n  Bern\n\n</parameter>\n</function>\n</tool_call>",
        content="Sure.",
        calls=(("weather", {"city": "\n  Bern\n"}),),
    ),
    Case(
        family="seed-oss",
        template="<seed:tool_call><seed:think>",
        raw="<seed:think>a</seed:think>b<seed:tool_call>\n"
        + tags("<function=weather>\n", "<parameter={key}>{value}</parameter>")
        + "\n</function>\n</seed:tool_call>",
        reasoning="a",
        content="b",
        calls=(("weather", ALL),),
    ),
    Case(
        family="glm",
        template=GLM,
        raw="\n<think>why</think>\nOne.\n<tool_call>"
        + tags("weather\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>")
        + "\n</tool_call>\n<tool_call>now</tool_call>",
        reasoning="why",
        content="One.",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="mistral",
        template=MISTRAL,
        raw="[THINK]a [TOOL_CALLS]now[ARGS]{} b[/THINK]c[TOOL_CALLS]weather[ARGS]"
        f"{ALL_JSON}[TOOL_CALLS]now[ARGS]{{}}",
        reasoning="a [TOOL_CALLS]now[ARGS]{} b",
        content="c",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="mistral",
        template="[TOOL_CALLS][CALL_ID][ARGS]",
        raw='[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Bern"}',
        calls=(("weather", BERN),),
        ids=("a1B2c3D4e",),
    ),
    Case(
        family="mistral",
        template="[TOOL_CALLS][{}]",
        raw='[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}, "id": "abcdefgh1"},'
        ' {"name": "now", "arguments": {}, "id": "abcdefgh2"}]',
        calls=(("weather", BERN), ("now", {})),
        ids=("abcdefgh1", "abcdefgh2"),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw=f'{{"name": "weather", "parameters": {ALL_JSON}}}',
        calls=(("weather", ALL),),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='\n{"type": "function", "name": "weather", "parameters": {"city": "Bern"}}; '
        '{"name": "now", "parameters": {}}',
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(family="llama-3", template=LLAMA, raw='{"name": "Bob"}', content='{"name": "Bob"}'),
    Case(family="llama-3", template=LLAMA, raw='{"nam', content='{"nam'),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='<|python_tag|>weather.call(city="Bern")',
        calls=(("weather", BERN),),
    ),
    Case(
        family="deepseek-r1",
        template=R1,
        prompt_end="<think>\n",
        raw="x\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{ALL_JSON}\n```{END}\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```{END}"
        "<｜tool▁calls▁end｜>",
        reasoning="x",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="deepseek-v3.1",
        template=V3,
        prompt_end="<think></think>",
        raw=f"So:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ALL_JSON}{END}"
        f"<｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}{END}<｜tool▁calls▁end｜>",
        content="So:",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="deepseek-dsml",
        template=DSML,
        prompt_end="<think>",
        raw='t</think>c\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">12</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        reasoning="t",
        content="c",
        calls=(("weather", {"city": "12", "days": 3}),),
    ),
    Case(
        family="kimi-k2",
        template=KIMI,
        raw="<think>t</think>c<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{ALL_JSON}<|tool_call_end|><|tool_call_begin|>functions.now:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        reasoning="t",
        content="c",
        calls=(("weather", ALL), ("now", {})),
        ids=("functions.weather:0", "functions.now:1"),
    ),
    Case(
        family="kimi-k3",
        template=KIMI_K3,
        prompt_end="<|open|>think<|sep|>",
        raw="t<|close|>think<|sep|><|open|>response<|sep|>c<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
        '12<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument'
        "<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        reasoning="t",
        content="c",
        calls=(("weather", {"city": "12", "days": 3}),),
    ),
    Case(
        family="command-r7b",
        template=COHERE,
        raw="<|START_THINKING|>t<|END_THINKING|><|START_ACTION|>[\n    "
        f'{{"tool_call_id": "0", "tool_name": "weather", "parameters": {ALL_JSON}}},\n'
        '    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        reasoning="t",
        calls=(("weather", ALL), ("now", {})),
        ids=("0", "1"),
    ),
    Case(
        family="command-r7b",
        template=COHERE,
        raw="<|START_THINKING|>t<|END_THINKING|><|START_RESPONSE|>Hi.<|END_RESPONSE|>",
        reasoning="t",
        content="Hi.",
    ),
    Case(
        family="command-r",
        template="<|CHATBOT_TOKEN|>Action:\n```json\n",
        raw='Action:\n```json\n[{"tool_name": "weather", "parameters": {"city": "Bern"}}]\n```',
        calls=(("weather", BERN),),
    ),
    Case(
        family="granite-3",
        template="<|tool_call|><think></think>",
        raw='<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}]',
        calls=(("weather", BERN),),
    ),
    Case(
        family="granite-3",
        template="<|tool_call|><think></think>",
        raw="<think>t</think><response>c</response>",
        reasoning="t",
        content="c",
    ),
    Case(
        family="functionary-v3.1",
        template="<function={}>{}</function><|python_tag|>",
        raw=f"Look:<function=weather>{ALL_JSON}</function><function=now>{{}}</function>",
        content="Look:",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="functionary-v3.2",
        template=FUNCTIONARY,
        prompt_end="<|end_header_id|>\n\n>>>",
        raw=f"all\nLook >>> here\n>>>weather\n{ALL_JSON}>>>now\n{{}}",
        content="Look >>> here",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="gemma-4",
        template=GEMMA,
        raw='<|channel>thought\nt\n<channel|>c<|tool_call>call:weather{city:<|"|>Z"ü\nrich<|"|>,days:3,'
        "wind:true,units:null,area:{km:[1,2.5]},hours:[6,18]}<tool_call|><|tool_call>call:now{}<tool_call|>",
        reasoning="t",
        content="c",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="minimax-m2",
        template=MINIMAX,
        prompt_end="<think>\n",
        raw="t\n</think>\n\nc\n<minimax:tool_call>\n"
        + tags('<invoke name="weather">\n', '<parameter name="{key}">{value}</parameter>')
        + '\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        reasoning="t",
        content="c",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="minimax-m3",
        template=M3,
        raw="<mm:think>t</mm:think>c]<]minimax[>[<tool_call>\n"
        ']<]minimax[>[<invoke name="weather">]<]minimax[>[<city>12]<]minimax[>[</city>'
        "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[<area>]<]minimax[>[<km>"
        "]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item>x]<]minimax[>[</item>"
        "]<]minimax[>[</km>]<]minimax[>[</area>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        reasoning="t",
        content="c",
        calls=(("weather", {"city": "12", "days": 3, "area": {"km": [1, "x"]}}),),
    ),
    Case(
        family="gpt-oss",
        template=HARMONY,
        prompt_end="<|start|>assistant",
        raw="<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>commentary<|message|>c"
        "<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        f"{ALL_JSON}<|call|>",
        reasoning="t",
        content="c",
        calls=(("weather", ALL),),
    ),
    Case(
        family="gpt-oss",
        template=HARMONY,
        prompt_end="<|start|>assistant",
        raw=" to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        calls=(("now", {}),),
    ),
    Case(
        family="gpt-oss",
        template=HARMONY,
        prompt_end="<|start|>assistant",
        raw="<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
        reasoning="a",
        content="b",
    ),
    Case(
        family="muse",
        template=MUSE,
        prompt_end="<|start|>assistant",
        raw=" to=self<|message|>see <atem:function_calls><|eom|><|start|>assistant to=user<|message|>c<|eom|>"
        '<|start|>assistant to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n'
        '<atem:parameter name="city">Bern</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>',
        reasoning="see <atem:function_calls>",
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="solar-open",
        template=SOLAR,
        prompt_end="<|begin|>assistant",
        raw="<|think|>t<|end|><|begin|>assistant<|content|>c<|end|><|begin|>assistant<|tool_calls|>"
        f"<|tool_call:begin|>q9<|tool_call:name|>weather<|tool_call:args|>{ALL_JSON}<|tool_call:end|>"
        "<|tool_call:begin|>q10<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        reasoning="t",
        content="c",
        calls=(("weather", ALL), ("now", {})),
        ids=("q9", "q10"),
    ),
    Case(
        family="lfm2",
        template=LFM,
        raw="<think>t</think>c<|tool_call_start|>[weather(city='Z\"ü\\nrich', days=3, wind=True, units=None,"
        ' area={"km": [1, 2.5]}, hours=[6, 18]), now()]<|tool_call_end|>',
        reasoning="t",
        content="c",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="olmo-3",
        template="<function_calls></function_calls>",
        raw='c<function_calls>weather(city="Bern")\nnow()</function_calls>',
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="llama-4",
        template="<|python_start|><|python_end|>",
        raw='<|python_start|>[weather(city="Bern")]<|python_end|>',
        calls=(("weather", BERN),),
    ),
    Case(
        family="llama-4",
        template="<|python_start|><|python_end|>",
        raw='[weather(city="Bern"), now()]',
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="llama-4",
        template="<|python_start|><|python_end|>",
        raw="[weather] it",
        content="[weather] it",
    ),
    Case(
        family="functiongemma",
        template="<start_function_call><end_function_call>",
        raw="<start_function_call>call:weather{city:<escape>Bern<escape>,days:3}<end_function_call>",
        calls=(("weather", {"city": "Bern", "days": 3}),),
    ),
    Case(
        family="longcat",
        template="<longcat_arg_key><longcat_think></longcat_think>",
        raw="<longcat_think>t</longcat_think>c<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Bern</longcat_arg_value>\n</longcat_tool_call>\n<longcat_tool_call>now</longcat_tool_call>",
        reasoning="t",
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="hermes",
        template="<tool_call></tool_call><think></think><response>\n</response>",
        prompt_end="<think>\n",
        raw='t\n</think>\n\n<response>\nc\n</response>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n',
        reasoning="t",
        content="c",
        calls=(("now", {}),),
    ),
    Case(
        family="tool-calls-tag",
        template="<tool_calls><tool_call>",
        raw='<tool_calls><tool_call>weather\n```json\n{"city": "Bern"}\n```</tool_call><tool_call>now\n```json\n{}\n```'
        "</tool_call></tool_calls>",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="hermes",
        template=HERMES,
        raw='<tool_call>{"name": "weather", "arguments": {"city": "a \\"</tool_call> b"}}</tool_call>c',
        content="c",
        calls=(("weather", {"city": 'a "</tool_call> b'}),),
    ),
    Case(
        family="mistral",
        template=MISTRAL,
        raw='[TOOL_CALLS]weather[ARGS]{"city": "[TOOL_CALLS]now[ARGS]{}, no"}[TOOL_CALLS]now[ARGS]{}',
        calls=(("weather", {"city": "[TOOL_CALLS]now[ARGS]{}, no"}), ("now", {})),
    ),
    Case(
        family="nemotron",
        template="<TOOLCALL>[]</TOOLCALL><think></think>",
        prompt_end="<think>\n",
        raw='t\n</think>\n<TOOLCALL>[{"name": "weather", "arguments": {"city": "Bern"}}]</TOOLCALL>\n',
        reasoning="t",
        calls=(("weather", BERN),),
    ),
    Case(
        family="apertus",
        template="<|tools_prefix|><|tools_suffix|><|inner_prefix|><|inner_suffix|>",
        raw='<|inner_prefix|>t<|inner_suffix|>c<|tools_prefix|>[{"weather": {"city": "Bern"}}, {"now": {}}]'
        "<|tools_suffix|>",
        reasoning="t",
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="phi-4-mini",
        template="<|tool|>{}<|/tool|>",
        raw='<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}]<|/tool_call|>',
        calls=(("weather", BERN),),
    ),
    Case(
        family="firefunction",
        template="functools[{}]",
        raw='c functools[{"name": "weather", "arguments": {"city": "Bern"}}]',
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="internlm",
        template="<|action_start|><|plugin|>",
        raw='c<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "Bern"}}<|action_end|>',
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="gigachat-3",
        template="function call<|role_sep|><|message_sep|>",
        raw='c<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Bern"}}',
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="gigachat-3.1",
        template="<|function_call|><|role_sep|>",
        raw='c<|function_call|>{"name": "weather", "arguments": {"city": "Bern"}}',
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="gigachat-3.5",
        template="<｜GCML｜tool_calls></think>",
        prompt_end="<think>",
        raw='t</think>c<｜GCML｜tool_calls><｜GCML｜invoke name="weather"><｜GCML｜parameter name="city" string="true">'
        'Bern</｜GCML｜parameter><｜GCML｜parameter name="area" string="false">{"km": 2}</｜GCML｜parameter>'
        '</｜GCML｜invoke><｜GCML｜invoke name="now"></｜GCML｜invoke></｜GCML｜tool_calls>',
        reasoning="t",
        content="c",
        calls=(("weather", {"city": "Bern", "area": {"km": 2}}), ("now", {})),
    ),
    Case(
        family="dots",
        template="<dots_function_call>",
        raw='c<dots_function_call><invoke name="weather"><parameter name="city">Bern</parameter><parameter name="days">'
        '3</parameter></invoke></dots_function_call><dots_function_call>{"name": "now"}</dots_function_call>',
        content="c",
        calls=(("weather", {"city": "Bern", "days": 3}), ("now", {})),
    ),
    Case(
        family="k2-horizon",
        template="<ifm|tool_call>",
        prompt_end="<ifm|think_fast>",
        raw="t</ifm|think_fast>c<ifm|tool_calls><ifm|tool_call>weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>12"
        "</ifm|arg_value><ifm|arg_key>days</ifm|arg_key><ifm|arg_type>integer</ifm|arg_type><ifm|arg_value>3"
        "</ifm|arg_value></ifm|tool_call>\n<ifm|tool_call>now</ifm|tool_call></ifm|tool_calls>",
        reasoning="t",
        content="c",
        calls=(("weather", {"city": "12", "days": 3}), ("now", {})),
    ),
    Case(
        family="k2-horizon",
        template="<ifm|tool_call>",
        prompt_end="<ifm|think>",
        raw='t\n</ifm|think><ifm|tool_calls>\n<ifm|tool_call>{"name": "weather", "arguments": {"city": "Bern"}}'
        '</ifm|tool_call>\n<ifm|tool_call>{"name": "now"}</ifm|tool_call>\n</ifm|tool_calls>',
        reasoning="t",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="iquest-coder-2",
        template="<iquestcoder_tool_call></think>",
        prompt_end="<think>",
        raw="t</think>c\n<iquestcoder_tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value>"
        "</iquestcoder_tool_call>\n<iquestcoder_tool_call>now</iquestcoder_tool_call>",
        reasoning="t",
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="granite-20b-fc",
        template="<|function_call_library|><function_call> {}",
        raw='c\n<function_call> {"name": "weather", "arguments": {"city": "<function_call> Bern"}}\n'
        '<function_call> {"name": "now", "arguments": {}}',
        content="c",
        calls=(("weather", {"city": "<function_call> Bern"}), ("now", {})),
    ),
    Case(
        family="hunyuan-4",
        template="{% set HYTK = ':x' %}<tool_calls{}><arg_key{}>",
        prompt_end="<think:x>",
        raw="t</think:x>c<tool_calls:x>\n<tool_call:x>weather<arg_key:x>days</arg_key:x><arg_value:x>3</arg_value:x>"
        "<arg_key:x>city</arg_key:x>\n<arg_value:x>Bern</arg_value:x></tool_call:x><tool_call:x>now</tool_call:x>"
        "</tool_calls:x>",
        reasoning="t",
        content="c",
        calls=(("weather", {"days": 3, "city": "Bern"}), ("now", {})),
    ),
    Case(
        family="hunyuan-3",
        template="<tool_sep{}><arg_key{}>",
        raw="<tool_calls><tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call></tool_calls>",
        calls=(("weather", BERN),),
    ),
    Case(
        family="granite-3",
        template="<|tool_call|>",
        raw='c\n<tool_call> [\n  {"arguments": {"city": "Bern"}, "name": "weather"},\n  {"name": "now", "arguments": {}}\n]',
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="internlm",
        template="<|action_start|> <|plugin|></think>",
        raw='<think>t</think>c<|action_start|> <|plugin|>\n{"name": "weather", "parameters": {"city": "Bern"}}<|action_end|>\n'
        '<|action_start|><|plugin|>{"name": "now", "parameters": {}}\n<|action_end|>',
        reasoning="t",
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="gemma-4",
        template=GEMMA,
        raw='<|channel>thought\nt\n<channel|>call:weather{city:<|"|>Bern<|"|>}<tool_call|>',
        reasoning="t",
        calls=(("weather", BERN),),
    ),
    Case(
        family="gemma-4",
        template=GEMMA,
        raw="c, so:\ncall:now{}",
        content="c, so:",
        calls=(("now", {}),),
    ),
    Case(family="gemma-4", template=GEMMA, raw="call:never{}", content="call:never{}"),
    Case(
        family="gemma-4",
        template=GEMMA,
        raw='<|tool_call>:call:weather{city:,area:{a:<|"|>,}<|"|>},days:3}<tool_call|>',
        calls=(("weather", {"city": "", "area": {"a": ",}"}, "days": 3}),),
    ),
    Case(
        family="gemma-4",
        template=GEMMA,
        raw='<|tool_call>call:weather{city:8001,days:<|"|>3<|"|>,wind:<|"|>true<|"|>,units:null,hours:[6]}<tool_call|>',
        calls=(
            ("weather", {"city": "8001", "days": 3, "wind": True, "units": None, "hours": [6]}),
        ),
    ),
    Case(
        family="functiongemma",
        template="<start_function_call><end_function_call>",
        raw="<start_function_call>call:weather{city:<escape>a, b:{<escape>days:3,wind:true}<end_function_call>",
        calls=(("weather", {"city": "a, b:{", "days": 3, "wind": True}),),
    ),
    Case(
        family="deepseek-dsml",
        template=DSML,
        raw='c\n\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="false">12</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="true">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="units" string="true">null</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="hours" string="true">[6]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        content="c",
        calls=(("weather", {"city": "12", "days": 3, "units": "null", "hours": [6]}),),
    ),
    Case(
        family="deepseek-dsml",
        template=DSML,
        raw='<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="arguments" string="false">{"city": "Bern", "days": 3}</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="python">\n'
        '<｜DSML｜parameter name="input" string="true">{"x": 1}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        calls=(("weather", {"city": "Bern", "days": 3}), ("python", {"input": '{"x": 1}'})),
    ),
    Case(
        family="kimi-k2",
        template=KIMI,
        raw="<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:7\n<|tool_call_argument_begin|>"
        '{"city": "Bern"}<|tool_call_end|><|tool_calls_section_end|>',
        calls=(("weather", BERN),),
        ids=("functions.weather:7",),
    ),
    Case(
        family="minicpm",
        template='<function name=""><param name=""></param></function></think>',
        prompt_end="<think>\n",
        raw='t</think><function name="weather"><param name="city"><![CDATA[<b> & </param>]]></param>'
        '<param name="days">3</param></function>\n<function name="now"></function>',
        reasoning="t",
        calls=(("weather", {"city": "<b> & </param>", "days": 3}), ("now", {})),
    ),
    Case(
        family="hunyuan-3",
        template="{% set HYTK = ':x' %}<tool_sep{}><arg_key{}>",
        prompt_end="<think:x></think:x>",
        raw="c<tool_calls:x>\n<tool_call:x>weather<tool_sep:x>\n<arg_key:x>days</arg_key:x>\n"
        "<arg_value:x>3</arg_value:x>\n<arg_key:x>city</arg_key:x>\n<arg_value:x>Bern</arg_value:x>\n"
        "</tool_call:x>\n</tool_calls:x>",
        content="c",
        calls=(("weather", {"days": 3, "city": "Bern"}),),
    ),
    Case(
        family="step-3",
        template="<steptml:invoke",
        raw="<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="weather"><steptml:parameter name="city">Bern</steptml:parameter>'
        "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
        calls=(("weather", BERN),),
    ),
    Case(
        family="tool-calls-tag",
        template="<tool_calls>[<answer></answer><think></think>",
        raw='<think>\nt\n</think>\n<answer>\nc\n<tool_calls>[{"name": "weather", "arguments": '
        '{"city": "Bern"}}]</tool_calls>',
        reasoning="t",
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="apriel",
        template="<tool_calls>[BEGIN FINAL RESPONSE]",
        prompt_end="Here are my reasoning steps:\n",
        raw="t\n[BEGIN FINAL RESPONSE]\nc\n[END FINAL RESPONSE]",
        reasoning="t",
        content="c\n",
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        raw="<tool_call>\n<function=python>\n<parameter=code>\n# </parameter> is no end\n"
        "print('</tool_call>')  # nor this: </function>\n</parameter>\n</function>\n</tool_call>c",
        content="c",
        calls=(
            (
                "python",
                {
                    "code": "# </parameter> is no end\nprint('</tool_call>')  # nor this: </function>"
                },
            ),
        ),
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        raw="<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</tool_call>",
        calls=(("weather", BERN),),
    ),
    Case(
        family="glm",
        template=GLM,
        raw="<tool_call>python\n<arg_key>code</arg_key>\n<arg_value>a = '</tool_call>'</arg_value>\n</tool_call>c",
        content="c",
        calls=(("python", {"code": "a = '</tool_call>'"}),),
    ),
    Case(
        family="minimax-m2",
        template=MINIMAX,
        raw='<minimax:tool_call>\n<invoke name="python">\n<parameter name="code">x = "</minimax:tool_call></invoke>"'
        "\n</parameter>\n</invoke>\n</minimax:tool_call>",
        calls=(("python", {"code": 'x = "</minimax:tool_call></invoke>"\n'}),),
    ),
    Case(
        family="deepseek-dsml",
        template=DSML,
        raw='<｜DSML｜function_calls>\n<｜DSML｜invoke name="python">\n'
        '<｜DSML｜parameter name="code" string="true">\n\nx\n</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        calls=(("python", {"code": "\n\nx\n"}),),
    ),
    Case(
        family="minicpm",
        template='<function name=""><param name=""></param></function></think>',
        raw='<function name="python"><param name="code"><![CDATA[\nx\n]]></param></function>',
        calls=(("python", {"code": "\nx\n"}),),
    ),
    Case(
        family="minimax-m3",
        template=M3,
        raw=']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Bern]<]minimax[>[</city>'
        "]<]minimax[>[<place>]<]minimax[>[<zip>03012]<]minimax[>[</zip>]<]minimax[>[<floor>3]<]minimax[>[</floor>"
        "]<]minimax[>[</place>]<]minimax[>[</invoke>\n"
        ']<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Bern]<]minimax[>[</city>]<]minimax[>[<place>'
        "]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item>true]<]minimax[>[</item>"
        "]<]minimax[>[</place>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        calls=(
            ("weather", {"city": "Bern", "place": {"zip": "03012", "floor": 3}}),
            ("weather", {"city": "Bern", "place": ["1", "true"]}),
        ),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw=f"<|python_tag|>{CODE}<|eom_id|>",
        calls=(("python", {"code": CODE}),),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='<|python_tag|>print("hi")',
        calls=(("python", {"code": 'print("hi")'}),),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='<|python_tag|>weather(city="Bern")',
        calls=(("weather", BERN),),
    ),
    Case(
        family="functionary-v3.1",
        template="<function=<|python_tag|>",
        raw=f"c<|python_tag|>{CODE}",
        content="c",
        calls=(("python", {"code": CODE}),),
    ),
    Case(
        family="functionary-v3.1",
        template="<function=<|python_tag|>",
        raw='<function=python>{"code": "</function>"}</function><function=now>{}</function>',
        calls=(("python", {"code": "</function>"}), ("now", {})),
    ),
    Case(
        family="functionary-v3.2",
        template=FUNCTIONARY,
        prompt_end=">>>",
        raw=f"all\nc>>>python\n{CODE}",
        content="c",
        calls=(("python", {"code": CODE}),),
    ),
    Case(
        family="gpt-oss",
        template=HARMONY,
        prompt_end="<|start|>assistant",
        raw=f"<|channel|>analysis to=python code<|message|>{CODE}<|call|>",
        calls=(("python", {"code": CODE}),),
    ),
    Case(
        family="hyperclova",
        template=HYPERCLOVA,
        prompt_end="<|im_start|>assistant",
        raw="/think\nt\n<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n<|im_start|>assistant -> tool/function_call\n"
        '[{"name": "weather", "arguments": {"city": "Bern"}}, {"name": "now", "arguments": {}}]<|im_end|><|stop|>',
        reasoning="t",
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="hyperclova",
        template=HYPERCLOVA,
        prompt_end="<|im_start|>assistant",
        raw="\nc<|im_end|><|endofturn|>",
        content="c",
    ),
    Case(
        family="lfm2",
        template="<|thought_start|><|thought_end|><|tool_call_start|><|tool_call_end|>",
        raw='<|thought_start|>\nt\n<|thought_end|>\n<|tool_call_start|>\n```python\nweather(city="Bern")\nnow()\n```\n'
        "<|tool_call_end|>\nc",
        reasoning="t",
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="tool-calls-tag",
        template="<beginning_of_sentence><tool_calls>\\n",
        raw='<think>\nt\n</think>\n\nc\n\n<tool_calls>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_calls>',
        reasoning="t",
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="solar-open-2",
        template="<|tool_call:start|><|tool_arg:value|><|think:start|><|think:end|>",
        prompt_end="<|im:start|>assistant<|im:content|><|think:start|>",
        raw="t<|think:end|>c<|tool_call:start|>weather\n<|tool_arg:start|>city<|tool_arg:value|> a<b <|tool_call: \n"
        "<|tool_arg:end|>\n<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>\n<|tool_call:end|>\n"
        "<|tool_call:start|>now\n<|tool_call:end|>",
        reasoning="t",
        content="c",
        calls=(("weather", {"city": " a<b <|tool_call: \n", "days": 3}), ("now", {})),
    ),
    Case(
        family="plamo-3",
        template="<|plamo:begin_tool_requests:plamo|><|plamo:begin_think:plamo|>",
        raw="<|plamo:begin_think:plamo|>t<|plamo:end_think:plamo|>c<|plamo:begin_tool_requests:plamo|>"
        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>weather<|plamo:end_tool_name:plamo|>"
        f"<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{ALL_JSON}"
        "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>now<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>"
        "<|plamo:constrain|>json<|plamo:msg|>{}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
        "<|plamo:end_tool_requests:plamo|>",
        reasoning="t",
        content="c",
        calls=(("weather", ALL), ("now", {})),
    ),
    Case(
        family="lfm2",
        template=LFM,
        raw="<|tool_call_start|>[python(code='awk '{print $2, $3}' log | tr '\\t' ' '), "
        "python(code=\"sh -c 'f(\"a\", x)'\"), weather(city='it's Bern', hours={6, 18}), weather(city='a', days=2,)]"
        "<|tool_call_end|>",
        calls=(
            ("python", {"code": "awk '{print $2, $3}' log | tr '\t' ' "}),
            ("python", {"code": "sh -c 'f(\"a\", x)'"}),
            ("weather", {"city": "it's Bern", "hours": [6, 18]}),
            ("weather", {"city": "a", "days": 2}),
        ),
    ),
    Case(
        family="olmo-3",
        template="<function_calls></function_calls>",
        raw="<function_calls>\npython(code='echo 'now()' > a')\nnow() weather(city='x')\n</function_calls>",
        calls=(("python", {"code": "echo 'now()' > a"}), ("now", {}), ("weather", {"city": "x"})),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='I ask.\n{"name": "Bern",\n\n  {"name": "weather", "parameters": {"city": "Bern"}}\n{"name": "now"}',
        content='I ask.\n{"name": "Bern",',
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='```json\n[{"name": "now", "description": "d"}]\n```\nThat is all.',
        content='```json\n[{"name": "now", "description": "d"}]\n```\nThat is all.',
    ),
    Case(
        family="llama-3",
        template=LLAMA,
        raw='I ask.\n\n```json\n{"name": "weather", "parameters": {"city": "Bern"}}\n```',
        content="I ask.",
        calls=(("weather", BERN),),
    ),
    Case(
        family="phi-4-mini",
        template="<|tool|>{}<|/tool|>",
        raw='c\nfunctools[{"name": "weather", "arguments": {"city": "Bern"}}, {"name": "now", "arguments": {}}]',
        content="c",
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="step-3",
        template="<steptml:invoke",
        raw="<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>weather\n"
        '<steptml:invoke name="weather"><steptml:parameter name="city">Bern</steptml:parameter>'
        "</steptml:invoke><｜tool_call_end｜><｜tool_sep｜><｜tool_call_begin｜>"
        '<steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="seed-oss",
        template="<seed:tool_call><seed:think>",
        raw="<seed:think>as <seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>, so</seed:think>\n"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        reasoning="as <seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>, so",
        calls=(("now", {}),),
    ),
    Case(
        family="tool-calls-tag",
        template="<beginning_of_sentence><tool_calls>\\n",
        raw='<think>as <tool_calls>\n{"name": "now"}\n</tool_calls>?</think>\n<tool_calls>\n{"name": "now"}\n</tool_calls>',
        reasoning='as <tool_calls>\n{"name": "now"}\n</tool_calls>?',
        calls=(("now", {}),),
    ),
    Case(
        family="minimax-m3",
        template=M3,
        raw=']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Bern]<]minimax[>[</city>'
        "]<]minimax[>[<area>]<]minimax[>[<id>7]<]minimax[>[</id>]<]minimax[>[<id>8]<]minimax[>[</id>"
        "]<]minimax[>[</area>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        calls=(("weather", {"city": "Bern", "area": {"id": [7, 8]}}),),
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        raw="<tool_call>\n<function=weather>\n<parameter=city>\nBern\n<parameter=days>\n3\n<parameter=wind>\ntrue\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=city>\nas in\n<parameter=days>\n<parameter=of>\n</parameter>\n</function>\n</tool_call>",
        calls=(
            ("weather", {"city": "Bern", "days": 3, "wind": True}),
            ("weather", {"days": 3, "city": "as in\n<parameter=days>\n<parameter=of>"}),
        ),
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        raw="<tool_call>\n<function=weather>\n<parameter=city>\nnull\n</parameter>\n<parameter=area>\n\"{'km': 1}\"\n"
        "</parameter>\n</function>\n</tool_call>",
        calls=(("weather", {"city": "null", "area": {"km": 1}}),),
    ),
    Case(
        family="deepseek-dsml",
        template=DSML,
        raw='<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n{\n  "city": "Bern"\n}\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">{}</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        calls=(("weather", BERN), ("now", {})),
    ),
    Case(
        family="kimi-k3",
        template=KIMI_K3,
        raw='<|open|>tools<|sep|><|open|>call tool="now" index="1"<|sep|><|open|>argument key="a &amp; &quot;b&quot;" '
        'type="string"<|sep|>&quot;<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
        calls=(("now", {'a & "b"': "&quot;"}),),
    ),
    Case(
        family="gpt-oss",
        template=HARMONY,
        prompt_end="<|start|>assistant",
        raw="<|channel|>analysis<|message|>t<|end|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>"
        "commentary<|channel|>commentary to=functions.now<|message|>{}<|call|>analysis<|channel|>final<|message|>the analysis",
        reasoning="t",
        content="the analysis",
        calls=(("now", {}), ("now", {})),
    ),
    Case(
        family="granite-3",
        template="<|tool_call|> 'Here is my thought process:' 'Here is my response:'",
        raw="Here is my thought process:\n\nHere is\nmy\n\nHere is my response:\n\nHere is my thought",
        reasoning="Here is\nmy",
        content="Here is my thought",
    ),
    Case(
        family="glm",
        template=GLM,
        raw="<tool_call>weather\n<arg_key>days</arg_key>\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
        calls=(("weather", BERN),),
    ),
    Case(
        family="gemma-4",
        template=GEMMA,
        raw='<|tool_call>call:weather{city:São Paulo<|"|>,days:3}<tool_call|>',
        calls=(("weather", {"city": "São Paulo", "days": 3}),),
    ),
    Case(
        family="k2-horizon",
        template="<ifm|tool_call>",
        prompt_end="<ifm|think>",
        raw="t</ifm|think>c\n<ifm|tool_call>weather<ifm|arg_key>city</ifm|arg_key><ifm|arg_value>Bern</ifm|arg_value>"
        "</ifm|tool_call>",
        reasoning="t",
        content="c",
        calls=(("weather", BERN),),
    ),
    Case(
        family="qwen-coder",
        template=QWEN_CODER,
        raw="<tool_call>\n<function=weather>\n<parameter=days>3</parameter>\n<parameter=city>\nSay\n</function>\nor\n"
        "</function>\n</tool_call>",
        calls=(("weather", {"days": 3, "city": "Say\n</function>\nor"}),),
    ),
    Case(
        family="apertus",
        template="<|tools_prefix|><|tools_suffix|><|inner_prefix|><|inner_suffix|>",
        raw='<|inner_prefix|>t<|tools_prefix|>[{"now": {}}]<|tools_suffix|><|inner_suffix|>c',
        reasoning="t",
        content="c",
        calls=(("now", {}),),
    ),
]
