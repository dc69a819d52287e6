"""The syntaxes of tool calls: a few kinds, and those that several families or any reader use.

The readers, the grammars and ``template show`` all use these values. A syntax describes one call,
or one list of calls, *inside* its section; what opens and closes the section is the format's, see
``model_format``. A syntax of one family alone stands in its entry in ``families``.

Every text is what the model writes by its training. Readers are more forgiving: they allow blanks
between the parts.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class JsonCalls:
    """``{"name": "f", "arguments": {...}}``, alone or in a list.

    With ``name_is_key`` a call is ``{"f": {...}}``. ``id_key``: where the model writes an id, in
    front of the name if ``id_comes_first``. ``code_tool``: a section that is no call is code for
    that tool, or for another that runs code.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None
    id_comes_first: bool = False
    in_list: bool = False
    name_is_key: bool = False
    before: str = ""
    after: str = ""
    code_tool: str = ""


@attrs.frozen(kw_only=True)
class NamedJson:
    """A name, then its arguments as a JSON object: ``f[ARGS]{...}``.

    ``name_prefix`` and ``index_mark`` surround the name where the model decorates it
    (``functions.f:0``; the decorated name is the call's id then). ``id_mark`` comes before an id
    of the model's own, which stands after the name or, if ``id_comes_first``, before it. Where
    ``header_names`` is set the name is part of the section's marker, and the section is JSON.
    ``code_tool``: as in :class:`JsonCalls`.
    """

    before_name: str = ""
    name_prefix: str = ""
    index_mark: str = ""
    id_mark: str = ""
    id_comes_first: bool = False
    after_name: str = ""
    after_arguments: str = ""
    header_names: bool = False
    code_tool: str = ""


@attrs.frozen(kw_only=True)
class TaggedCalls:
    """Names, keys and values between tags.

    A call is ``before_name`` name ``name_end`` ... ``head_end``, its arguments, ``call_end``; where
    ``name_end`` is empty the name ends at the first argument or at the call's end. An argument is
    ``before_key`` key ``key_end`` ... ``before_value`` value ``value_end``. Where attributes may
    stand is written "..." here; where there are none, ``head_end`` or ``before_value`` is empty.
    ``value_blank`` stands around every value, ``blank`` after every tag. ``text_attribute`` is an
    attribute that marks the value as a text or as JSON. Line breaks at the ends of a value are its
    own, but for a ``value_blank``. ``quoted``: texts stand in JSON's quotes.
    ``escapes``: ``&`` and quotes in names and keys are written as XML does.
    """

    before_name: str
    name_end: str
    head_end: str = ""
    before_key: str
    key_end: str
    before_value: str = ""
    value_end: str
    call_end: str = ""
    value_blank: str = ""
    blank: str = "\n"
    text_attribute: str = ""
    has_cdata: bool = False
    quoted: bool = False
    escapes: bool = False


@attrs.frozen(kw_only=True)
class NestedTags:
    """Every key is a tag of its own, and so are the keys inside objects; lists are ``<item>``.

    ``mark`` stands before every tag.
    """

    mark: str


@attrs.frozen(kw_only=True)
class PythonCalls:
    """``f(a="x", b=1)``: in a list if ``in_list``, else one a line.

    ``after_name`` is what stands between the name and the parenthesis (``.call``).
    """

    in_list: bool = True
    after_name: str = ""


@attrs.frozen(kw_only=True)
class QuotedObjects:
    """``call:f{key:<|"|>text<|"|>,n:5}``: objects with bare keys and texts in a quote token."""

    before_name: str = "call:"
    quote: str = '<|"|>'


CallSyntax: TypeAlias = (
    JsonCalls | NamedJson | TaggedCalls | NestedTags | PythonCalls | QuotedObjects
)

HERMES = JsonCalls(before="\n", after="\n")
QWEN_CODER = TaggedCalls(
    before_name="<function=",
    name_end=">",
    before_key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    call_end="</function>",
    value_blank="\n",
)


def argument_tags(
    prefix: str = "",
    suffix: str = "",
    *,
    before_name: str = "",
    name_end: str = "",
    call_end: str = "",
) -> TaggedCalls:
    """``f<arg_key>k</arg_key><arg_value>v</arg_value>``, GLM's tags with affixes to their names."""
    return TaggedCalls(
        before_name=before_name,
        name_end=name_end,
        before_key=f"<{prefix}arg_key{suffix}>",
        key_end=f"</{prefix}arg_key{suffix}>",
        before_value=f"<{prefix}arg_value{suffix}>",
        value_end=f"</{prefix}arg_value{suffix}>",
        call_end=call_end,
    )


def invoke_tags(prefix: str = "", *, blank: str = "\n", text_attribute: str = "") -> TaggedCalls:
    """``<invoke name="f"><parameter name="k">v</parameter></invoke>``, ``prefix`` in every tag."""
    return TaggedCalls(
        before_name=f'<{prefix}invoke name="',
        name_end='"',
        head_end=">",
        before_key=f'<{prefix}parameter name="',
        key_end='"',
        before_value=">",
        value_end=f"</{prefix}parameter>",
        call_end=f"</{prefix}invoke>",
        blank=blank,
        text_attribute=text_attribute,
    )


GLM = argument_tags()
INVOKE = invoke_tags()
DSML = invoke_tags("｜DSML｜", text_attribute="string")  # noqa: RUF001 - as DeepSeek
GCML = invoke_tags("｜GCML｜", text_attribute="string")  # noqa: RUF001 - as GigaChat
ATEM = invoke_tags("atem:")
STEP_ML = invoke_tags("steptml:", blank="")
PARAM = TaggedCalls(
    before_name='<function name="',
    name_end='"',
    head_end=">",
    before_key='<param name="',
    key_end='"',
    before_value=">",
    value_end="</param>",
    call_end="</function>",
    blank="",
    has_cdata=True,
)
KIMI_K3 = TaggedCalls(
    before_name='<|open|>call tool="',
    name_end='"',
    head_end="<|sep|>",
    before_key='<|open|>argument key="',
    key_end='"',
    before_value="<|sep|>",
    value_end="<|close|>argument<|sep|>",
    call_end="<|close|>call<|sep|>",
    blank="",
    text_attribute="type",
    escapes=True,
)
MISTRAL_WITH_ID = NamedJson(id_mark="[CALL_ID]", after_name="[ARGS]")
DEEPSEEK_FENCED = NamedJson(
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001
    after_name="\n```json\n",
    after_arguments="\n```<｜tool▁call▁end｜>",  # noqa: RUF001
)
DEEPSEEK_V3_1 = NamedJson(
    before_name="<｜tool▁call▁begin｜>",  # noqa: RUF001
    after_name="<｜tool▁sep｜>",  # noqa: RUF001
    after_arguments="<｜tool▁call▁end｜>",  # noqa: RUF001
)
KIMI_K2 = NamedJson(
    before_name="<|tool_call_begin|>",
    name_prefix="functions.",
    index_mark=":",
    after_name="<|tool_call_argument_begin|>",
    after_arguments="<|tool_call_end|>",
)
SOLAR = NamedJson(
    before_name="<|tool_call:begin|>",
    id_comes_first=True,
    id_mark="<|tool_call:name|>",
    after_name="<|tool_call:args|>",
    after_arguments="<|tool_call:end|>",
)
FUNCTION_JSON = NamedJson(before_name="<function=", after_name=">", after_arguments="</function>")
MINIMAX_M3 = NestedTags(mark="]<]minimax[>[")

READ_ANYWHERE: tuple[TaggedCalls | NamedJson, ...] = (
    QWEN_CODER,
    INVOKE,
    DSML,
    GCML,
    ATEM,
    STEP_ML,
    PARAM,
    KIMI_K3,
    DEEPSEEK_FENCED,
    DEEPSEEK_V3_1,
    KIMI_K2,
    SOLAR,
)
"""Models slip into these, whatever their own way of writing: known by what a call begins with."""


def start_of(syntax: CallSyntax | None) -> str:
    """Return what a call of this syntax begins with; "" if nothing distinguishes it from other
    text."""
    match syntax:
        case NestedTags(mark=mark):
            return f'{mark}<invoke name="'
        case TaggedCalls(before_name=text) | NamedJson(before_name=text):
            return text
        case JsonCalls(in_list=False):
            return "\n{"
        case _:
            return ""
