"""Images and sounds of a conversation: from parts of messages to places in a prompt.

Templates differ in how they write an image, and llama.cpp puts the tokens around it by itself. So a
template is given a text in the place of each: a numbered marker, made of characters that no message
can contain. After rendering the prompt is cut at the markers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from paddler_trio.language.images.decoding import ImageError, PixelBudget, check_image, read_image
from paddler_trio.language.refusal import Refusal, bad_request
from paddler_trio.language.sounds.sounds import (
    CAN_DECODE,
    SecondsBudget,
    SoundError,
    read_sound,
)
from paddler_trio.language.templates.chat_messages import IMAGE_PARTS, SOUND_PARTS, Message
from paddler_trio.wire.engine.media import NO_SENSES, Image, Medium, Senses, Sound
from paddler_trio.wire.trio.work import ConversationPrompt

MAX_MEDIA = 64
MAX_MEDIA_BYTES = 134_217_728
"""All pixels and samples of a request have so many: they travel to the engine at once."""
READABLE_MARKER = "<__media__>"
"""People are shown this in the place of an image or a sound; llama.cpp's name for it."""

# Noncharacters: Unicode leaves them to programs for their own use.
_OPEN, _CLOSE = "\ufdd1", "\ufdd2"
_MARKER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_FOREIGN = re.compile(f"[{_OPEN}{_CLOSE}]")
_REPLACEMENT = "\ufffd"


@attrs.frozen
class Shown:
    """A conversation whose images and sounds are markers, and these by their number."""

    conversation: ConversationPrompt
    media: tuple[Medium, ...]


def show_media(conversation: ConversationPrompt, *, fit: int, senses: Senses = NO_SENSES) -> Shown:
    """Decode every image and sound and put a marker in its place. Blocking.

    Args:
      fit: pixels, see :func:`read_image`.
      senses: what sounds the model hears.

    Raises:
      Refusal: ``ImageDecodingFailed``, or ``BadRequest`` for a sound, naming the part.
    """
    media: list[Medium] = []
    known: dict[tuple[bool, str], Medium] = {}
    budgets = PixelBudget(), SecondsBudget(senses.sound_s)
    num_bytes = 0
    messages = [_cleaned(message) for message in conversation.messages]
    for path, part, given in _media_parts(messages):
        is_sound = part["type"] in SOUND_PARTS
        try:
            if (medium := known.get((is_sound, given))) is None:
                known[is_sound, given] = medium = (
                    read_sound(given, rate=senses.sound_rate, budget=budgets[1])
                    if is_sound
                    else read_image(given, fit=fit, budget=budgets[0])
                )
            elif isinstance(medium, Sound):
                budgets[1].spend(medium.num_samples / senses.sound_rate)
        except (ImageError, SoundError) as error:
            raise _undecodable(path, str(error), is_sound=is_sound) from error
        num_bytes += len(medium.pixels if isinstance(medium, Image) else medium.samples)
        if num_bytes > MAX_MEDIA_BYTES:
            raise _undecodable(
                path,
                f"images and sounds have {num_bytes} bytes as pixels and samples, the limit is "
                f"{MAX_MEDIA_BYTES}; send fewer, or lower image_resize_to_fit",
                is_sound=is_sound,
            )
        part.clear()
        part |= {"type": "text", "text": f"{_OPEN}{len(media)}{_CLOSE}"}
        media.append(medium)
    marked = attrs.evolve(
        conversation,
        messages=tuple(messages),
        tools=tuple(_cleaned(tool) for tool in conversation.tools),
        template_kwargs=_cleaned(conversation.template_kwargs),
    )
    return Shown(marked, tuple(media))


def check_senses(conversation: ConversationPrompt, senses: Senses) -> None:
    """Refuse what this model neither sees nor hears; no pixels are unpacked. Blocking.

    Raises:
      Refusal: ``ImageDecodingFailed``, or ``MultimodalNotSupported``, naming a part with sound.
    """
    parts = [*_media_parts(conversation.messages)]
    images = [(path, url) for path, part, url in parts if part["type"] in IMAGE_PARTS]
    if images and not senses.sees_images:
        for path, url in images:  # Paddler reports a broken image first
            try:
                check_image(url)
            except ImageError as error:
                raise _undecodable(path, str(error)) from error
        raise Refusal(
            "MultimodalNotSupported",
            "the model was loaded without a multimodal projection that sees: it cannot see images",
        )
    sound = next((path for path, part, _ in parts if part["type"] in SOUND_PARTS), None)
    if sound is not None and not (CAN_DECODE and senses.sound_rate):
        why = (
            "the agent has no decoder for sounds: pip install 'paddler-trio[sound]'"
            if senses.sound_rate
            else "the model was loaded without a multimodal projection that hears"
        )
        raise Refusal("MultimodalNotSupported", f"{sound}.input_audio: not supported, {why}")


def media_in(text: str, media: Sequence[Medium]) -> tuple[Medium, ...]:
    """The images and sounds of a rendered prompt, in its order.

    Raises:
      Refusal: ``ChatTemplateError``, the template left one out.
    """
    order = [int(found[1]) for found in _MARKER.finditer(text)]
    lost = sorted(set(range(len(media))) - set(order))
    if lost:
        raise Refusal(
            "ChatTemplateError",
            f"the chat template leaves out {len(lost)} of {len(media)} images and sounds (the "
            f"first is number {lost[0] + 1} of the conversation): it cannot show them in such a "
            "message",
        )
    return tuple(media[number] for number in order)


def texts_between(text: str) -> list[str]:
    """Return what stands before, between and after the media of a prompt: one text more than
    media."""
    return _MARKER.split(text)[::2]


def readable(text: str) -> str:
    """The prompt with what llama.cpp calls a medium in its place."""
    return _MARKER.sub(READABLE_MARKER, text)


def _media_parts(
    messages: Sequence[Mapping[str, object]],
) -> Iterator[tuple[str, dict[str, object], str]]:
    """The path, the part and the address or content of every image and sound; Refusal for one
    without, or one too many."""
    num_media = 0
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            if isinstance(part, dict) and part.get("type") in IMAGE_PARTS | SOUND_PARTS:
                path = f"messages[{number}].content[{place}]"
                num_media += 1
                is_sound = part["type"] in SOUND_PARTS
                given = _sound_of(part) if is_sound else _url_of(part)
                if given is None:
                    wanted = "input_audio.data" if is_sound else "image_url.url"
                    problem = f"expected an address in {wanted}, got none"
                    raise _undecodable(path, problem, is_sound=is_sound)
                if num_media > MAX_MEDIA:
                    problem = f"more than {MAX_MEDIA} images and sounds in one request"
                    raise _undecodable(path, problem, is_sound=is_sound)
                yield path, part, given


def _url_of(part: Mapping[str, object]) -> str | None:
    """Both spellings: OpenAI's, and the shorter one of Hugging Face."""
    for name in ("image_url", "image", "url"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if isinstance(value, str):
            return value
    return None


def _sound_of(part: Message) -> str | None:
    """Return the address or the base64, OpenAI's place of it or llama-server's."""
    value = part.get("input_audio")
    members = [value.get(name) for name in ("url", "data")] if isinstance(value, Mapping) else []
    return next((each for each in members if isinstance(each, str)), None)


def _undecodable(path: str, reason: str, *, is_sound: bool = False) -> Refusal:
    """Paddler's clients cannot send a sound, and have no result for one."""
    if is_sound:
        return bad_request(f"{path}.input_audio", f"{path}.input_audio: {reason}")
    return Refusal("ImageDecodingFailed", f"{path}: {reason}")


def _cleaned(value: Mapping[str, object]) -> dict[str, object]:
    """A copy that brings no marker along; lists and objects in it may be changed."""
    return {_without_markers(key): _cleaned_value(each) for key, each in value.items()}


def _cleaned_value(value: object) -> object:
    if isinstance(value, str):
        return _without_markers(value)
    if isinstance(value, Mapping):
        return _cleaned(value)
    if isinstance(value, list | tuple):
        return [_cleaned_value(each) for each in value]
    return value


def _without_markers(text: str) -> str:
    return _FOREIGN.sub(_REPLACEMENT, text)
