"""Set requests under a preset: pure, and the same for every API.

A body is filtered before its API reads it, and what that makes of it is set under the preset
afterwards. Both happen in :meth:`ApiExchange.read`, through which every body comes.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, Self, TypeVar, runtime_checkable

import attrs

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.wire.trio.presets import FreeObject, Preset, SystemPlace
from paddler_trio.wire.trio.work import ConversationPrompt, Generate, Prompt, SamplingOverrides

T = TypeVar("T")
_SYSTEM_ROLES: Final = ("system", "developer")


@runtime_checkable
class OfPreset(Protocol):
    """A request of an API that a preset may change."""

    def under(self, preset: Preset, ignored: IgnoredFields) -> Self:
        """Return it as the preset makes it; ``ignored`` hears what of it does not count."""
        ...


@attrs.frozen(kw_only=True)
class Generating:
    """A request that has one native request, from which all others of it are made."""

    generate: Generate

    def under(self, preset: Preset, ignored: IgnoredFields) -> Self:
        return attrs.evolve(self, generate=preset_over(preset, self.generate, ignored))


@attrs.frozen
class CountedPrompt:
    """A conversation of which only the prompt is wanted."""

    prompt: ConversationPrompt
    model: str | None

    def under(self, preset: Preset, ignored: IgnoredFields) -> Self:
        return attrs.evolve(self, prompt=conversation_over(preset, self.prompt, ignored))


def filtered(preset: Preset, body: dict[str, Any], ignored: IgnoredFields) -> dict[str, Any]:
    """Return the body without the fields that the preset ignores.

    Errors:
      ApiError: 400 for one that it refuses; one of null asks for nothing.
    """
    for path in preset.refuse:
        if _member(body, path) is not None:
            raise ApiError(
                400,
                f"{path} cannot be given: the model {preset.name!r} refuses it",
                param=path,
                code="unsupported_parameter",
            )
    for path in preset.ignore:
        if _member(body, path) is not None:
            body = _without(body, path.split("."))
            ignored.add("", path)
    return body


def _member(body: object, path: str) -> object:
    """Return the value at a path; a whole name that has points in it comes before its parts."""
    if isinstance(body, dict) and path in body:
        return body[path]
    for name in path.split("."):
        body = body.get(name) if isinstance(body, dict) else None
    return body


def _without(body: dict[str, Any], names: list[str]) -> dict[str, Any]:
    whole, (first, *rest) = ".".join(names), names
    if whole in body:
        first, rest = whole, []
    if not rest:
        return {name: value for name, value in body.items() if name != first}
    return {**body, first: _without(body[first], rest)}


def preset_over(preset: Preset, generate: Generate, ignored: IgnoredFields) -> Generate:
    """Return the native request as the preset makes it.

    Errors:
      ApiError: 400 for a prompt that has no place for what the preset says.
    """
    over = _Over(preset, ignored)
    stop = generate.stop
    if preset.stop:
        own = () if over.is_forced("stop", bool(stop)) else stop
        stop = tuple(dict.fromkeys((*preset.stop, *own)))
    most = preset.max_tokens.of(generate.max_tokens)
    if generate.max_tokens not in (None, most):
        ignored.add("", "max_tokens")
    return attrs.evolve(
        generate,
        prompt=_prompt_over(over, generate.prompt),
        max_tokens=most,
        sampling=_sampling_over(over, generate.sampling),
        constraint=over.of("constraint", generate.constraint),
        stop=stop,
        lora=over.of("lora", generate.lora),
    )


def conversation_over(
    preset: Preset, prompt: ConversationPrompt, ignored: IgnoredFields
) -> ConversationPrompt:
    """Return only the conversation as the preset makes it."""
    return _conversation_over(_Over(preset, ignored), prompt)


@attrs.frozen
class _Over:
    """Compare a preset with a request, and report what of the request does not count."""

    preset: Preset
    ignored: IgnoredFields

    def is_forced(self, name: str, is_given: bool) -> bool:
        """Return whether the preset's ``name`` counts whatever the request says; if it does say
        something, that is reported."""
        if name not in self.preset.forced:
            return False
        if is_given:
            self.ignored.add("", name)
        return True

    def of(self, name: str, given: T) -> T:
        """Return the request's value of a member that is None or empty where it says nothing, or
        the preset's."""
        own: T = getattr(self.preset, name)
        is_given = given is not None and given != ()
        if own is None or own == () or own == given:
            return given
        return own if self.is_forced(name, is_given) or not is_given else given


def _sampling_over(over: _Over, sampling: SamplingOverrides) -> SamplingOverrides:
    changes = over.preset.sampling_values
    for field in attrs.fields(SamplingOverrides):
        given = getattr(sampling, field.name)
        if given == field.default or given == changes.get(field.name, given):
            continue
        if not over.is_forced(field.name, is_given=True):
            del changes[field.name]
    return attrs.evolve(sampling, **changes) if changes else sampling


def _prompt_over(over: _Over, prompt: Prompt) -> Prompt:
    if isinstance(prompt, ConversationPrompt):
        return _conversation_over(over, prompt)
    if over.preset.is_for_conversations:
        what = "a system text" if over.preset.system else "tools"
        raise ApiError(
            400,
            f"the model {over.preset.name!r} has {what}, which has no place in a prompt that no "
            "template renders: send messages",
            param="prompt",
            code="unsupported_parameter",
        )
    return prompt


def _conversation_over(over: _Over, prompt: ConversationPrompt) -> ConversationPrompt:
    preset = over.preset
    words = {**preset.template_kwargs, **prompt.template_kwargs}
    overridden = [name for name in preset.template_kwargs if name in prompt.template_kwargs]
    if over.is_forced("template_kwargs", bool(overridden)):
        words |= preset.template_kwargs
    changes: dict[str, Any] = {}  # of as many types as there are fields
    tools = over.of("tools", prompt.tools)
    if tools != prompt.tools:  # what was chosen among others may not be there
        changes |= {"tools": tools, "tool_choice": "auto", "tool_name": None}
    return attrs.evolve(
        prompt,
        messages=_messages_over(over, prompt.messages),
        thinking=over.of("thinking", prompt.thinking),
        max_reasoning_tokens=over.of("max_reasoning_tokens", prompt.max_reasoning_tokens),
        template_kwargs=words,
        **changes,
    )


def _messages_over(over: _Over, messages: tuple[FreeObject, ...]) -> tuple[FreeObject, ...]:
    """Return the conversation with the preset's text in its one system message at the beginning:
    templates know no second one."""
    text = over.preset.system
    if not text:
        return messages
    if over.preset.system_place is SystemPlace.INSTEAD:
        others = tuple(each for each in messages if each.get("role") not in _SYSTEM_ROLES)
        if len(others) < len(messages):
            over.ignored.add("", "system")
        return ({"role": "system", "content": text}, *others)
    if messages and messages[0].get("role") in _SYSTEM_ROLES:
        return (_behind(text, messages[0]), *messages[1:])
    return ({"role": "system", "content": text}, *messages)


def _behind(text: str, message: FreeObject) -> FreeObject:
    content = message.get("content")
    if isinstance(content, list | tuple):
        said: object = [{"type": "text", "text": f"{text}\n\n"}, *content]
    else:
        said = f"{text}\n\n{content}" if content else text
    return {**message, "content": said}
