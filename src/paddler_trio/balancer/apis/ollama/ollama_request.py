"""The bodies of ``/api/chat`` and ``/api/generate`` as native requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from paddler_trio.balancer.apis.api_errors import invalid
from paddler_trio.balancer.apis.fields import list_in, object_in, text_in
from paddler_trio.balancer.apis.generation_fields import generate_of, schema_constraint, stop_of
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.ollama.go_template import filled
from paddler_trio.balancer.apis.ollama.ollama_fields import chat_record, generate_record
from paddler_trio.balancer.apis.openai.chat_conversation import conversation_prompt
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.balancer.apis.under_presets import preset_over
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.work import (
    AnyJsonGrammar,
    Constraint,
    Generate,
    InfillPrompt,
    Prompt,
    TextPrompt,
)

_KINDS: Mapping[str, str] = {
    "iVBORw0KGgo": "png",
    "/9j/": "jpeg",
    "R0lGOD": "gif",
    "UklGR": "webp",
    "Qk": "bmp",
}
"""The beginning of an image's base64."""


@attrs.frozen(kw_only=True)
class OllamaRequest:
    """``generate`` is None for a request that only loads the model.

    Args:
      unloads: it asks for the model not to be kept.
      is_verbatim: no template renders the prompt, and no part of the answer is told apart.
    """

    model: str | None
    generate: Generate | None
    is_stream: bool
    unloads: bool = False
    is_verbatim: bool = False

    @property
    def with_logprobs(self) -> bool:
        return self.generate is not None and self.generate.logprobs is not None

    def under(self, preset: Preset, ignored: IgnoredFields) -> OllamaRequest:
        """Return it as the preset makes it."""
        if self.generate is None:
            return self
        return attrs.evolve(self, generate=preset_over(preset, self.generate, ignored))


def read_chat(body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT) -> OllamaRequest:
    """Read the request; ApiError 400, with the path of the field, for what cannot be honoured."""
    values = chat_record(limits).read(body, "", ignored)
    messages = [_message(message) for message in list_in(values, "messages")]
    if not messages:
        return _request(values, None, ignored)
    given = _some(values, "tools", "think") | {"messages": messages}
    return _request(values, conversation_prompt(given, ignored), ignored)


def read_generate(
    body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT
) -> OllamaRequest:
    """Read the request; ApiError 400, with the path of the field, for what cannot be honoured."""
    values = generate_record(limits).read(body, "", ignored)
    text, suffix = str(values.get("prompt", "")), str(values.get("suffix", ""))
    images = [str(image) for image in list_in(values, "images")]
    template, system = text_in(values, "template"), text_in(values, "system")
    if not (text or suffix or images):
        if values.get("context"):
            ignored.add("", "context")
        return _request(values, None, ignored)
    as_it_stands = "raw" if values.get("raw") is True else "suffix" if suffix else None
    if as_it_stands is not None:
        out_of_place = {"template": template, "system": system and not suffix}
        for name, is_there in {**out_of_place, "context": values.get("context")}.items():
            if is_there:
                raise invalid(f"{name} has no place in a prompt with {as_it_stands}", name)
    context = tuple(list_in(values, "context"))
    if as_it_stands is None and template is None:
        said = [{"role": "user", "content": _content(text, images)}]
        if system:
            said.insert(0, {"role": "system", "content": system})
        given = _some(values, "think") | {"messages": said}
        return _request(values, conversation_prompt(given, ignored), ignored, context)
    if images:
        raise invalid(
            f"images have no place in a prompt with {as_it_stands or 'template'}", "images"
        )
    if suffix:
        if system:
            ignored.add("", "system")
        return _request(values, InfillPrompt(prefix=text, suffix=suffix), ignored)
    if template is not None:
        text = filled(template, {".System": system or "", ".Prompt": text, ".Suffix": ""})
    return _request(values, TextPrompt(text=text), ignored, None if as_it_stands else context)


def _request(
    values: Mapping[str, object],
    prompt: Prompt | None,
    ignored: IgnoredFields,
    context: tuple[int, ...] | None = None,
) -> OllamaRequest:
    options = object_in(values, "options")
    most = options.get("num_predict")
    unloads = prompt is None and _is_nothing(values.get("keep_alive"))
    if unloads:
        ignored.add("", "keep_alive")
    generate = None
    if prompt is not None:
        generate = generate_of(
            {**options, **_some(values, "lora")},
            prompt,
            max_tokens=most if isinstance(most, int) and most > 0 else None,
            constraint=_constraint(values.get("format", "")),
            stop=stop_of(options),
            logprobs=_logprobs(values.get("logprobs"), values.get("top_logprobs", 0), ignored),
        )
        generate = attrs.evolve(generate, context=context)
    return OllamaRequest(
        model=text_in(values, "model"),
        generate=generate,
        is_stream=values.get("stream") is not False,
        unloads=unloads,
        is_verbatim=isinstance(prompt, TextPrompt | InfillPrompt),
    )


def _is_nothing(duration: object) -> bool:
    """Return whether a duration such as ``0`` or ``"0s"`` is none at all."""
    return duration == 0 or (isinstance(duration, str) and duration.strip("hms") == "0")


def _logprobs(wanted: object, top: object, ignored: IgnoredFields) -> int | None:
    if wanted is not True:
        if top:
            ignored.add("", "top_logprobs")
        return None
    return top if isinstance(top, int) else 0


def _constraint(given: object) -> Constraint | None:
    if given == "":
        return None
    return AnyJsonGrammar() if given == "json" else schema_constraint(given)


# --------------------------------------------------------------------------- the conversation


def _message(message: Mapping[str, object]) -> Json:
    """Return a message as OpenAI's are."""
    said = {"role": message["role"], "content": message.get("content", "")}
    images = [str(image) for image in list_in(message, "images")]
    if images:
        said["content"] = _content(str(said["content"]), images)
    if "thinking" in message:
        said["reasoning_content"] = message["thinking"]
    if calls := list_in(message, "tool_calls"):
        said["tool_calls"] = [
            {**_some(call, "id"), "type": "function", "function": _some(call["function"], *_CALLED)}
            for call in calls
        ]
    if "tool_name" in message:
        said["name"] = message["tool_name"]
    return said | _some(message, "tool_call_id")


_CALLED = ("name", "arguments")


def _some(values: Mapping[str, object], *names: str) -> Json:
    return {name: values[name] for name in names if name in values}


def _content(text: str, images: Iterable[str]) -> object:
    """Return a text alone, or the images and then the text."""
    parts = [{"type": "image_url", "image_url": {"url": _data_uri(image)}} for image in images]
    if not parts:
        return text
    return [*parts, *([{"type": "text", "text": text}] if text else [])]


def _data_uri(image: str) -> str:
    if image.startswith("data:"):
        return image
    kind = next((kind for begins, kind in _KINDS.items() if image.startswith(begins)), "png")
    return f"data:image/{kind};base64,{image}"
