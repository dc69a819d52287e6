"""Images of a conversation: from parts of messages to places in a prompt.

Templates differ in how they write an image, and llama.cpp puts the tokens around it by itself. So a
template is given a text in the place of each image: a numbered marker, made of characters that no
message can contain. After rendering the prompt is cut at the markers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from paddler_trio.language.images.decoding import ImageError, PixelBudget, check_image, read_image
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.templates.chat_messages import IMAGE_PARTS
from paddler_trio.wire.engine.engine_pipe import Image
from paddler_trio.wire.trio.work import ConversationPrompt

MAX_IMAGES = 64
MAX_PIXEL_BYTES = 134_217_728
"""Of all images of a request together, as they are shown: they travel to the engine at once."""
READABLE_MARKER = "<__media__>"
"""What people are shown in the place of an image; llama.cpp's name for it."""

# Noncharacters: Unicode leaves them to programs for their own use.
_OPEN, _CLOSE = "\ufdd1", "\ufdd2"
_MARKER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_FOREIGN = re.compile(f"[{_OPEN}{_CLOSE}]")
_REPLACEMENT = "\ufffd"


@attrs.frozen
class Shown:
    """A conversation whose images are markers, and the images by their number."""

    conversation: ConversationPrompt
    images: tuple[Image, ...]


def show_images(conversation: ConversationPrompt, *, fit: int) -> Shown:
    """Decode every image and put a marker in its place. Blocking.

    Raises:
      Refusal: ``ImageDecodingFailed``, naming the part.
    """
    images: list[Image] = []
    known: dict[str, Image] = {}
    budget = PixelBudget()
    num_bytes = 0
    messages = [_cleaned(message) for message in conversation.messages]
    for path, part, url in _image_parts(messages):
        if url not in known:
            try:
                known[url] = read_image(url, fit=fit, budget=budget)
            except ImageError as error:
                raise _undecodable(path, str(error)) from error
        num_bytes += len(known[url].pixels)
        if num_bytes > MAX_PIXEL_BYTES:
            raise _undecodable(
                path,
                f"the images have {num_bytes} bytes as pixels, the limit is {MAX_PIXEL_BYTES}; "
                "send fewer, or lower image_resize_to_fit",
            )
        part.clear()
        part |= {"type": "text", "text": f"{_OPEN}{len(images)}{_CLOSE}"}
        images.append(known[url])
    marked = attrs.evolve(
        conversation,
        messages=tuple(messages),
        tools=tuple(_cleaned(tool) for tool in conversation.tools),
        template_kwargs=_cleaned(conversation.template_kwargs),
    )
    return Shown(marked, tuple(images))


def check_images(conversation: ConversationPrompt) -> None:
    """Check that a model that sees could be shown every image; no pixels are unpacked. Blocking.

    Raises:
      Refusal: ``ImageDecodingFailed``, naming the part.
    """
    for path, _, url in _image_parts(conversation.messages):
        try:
            check_image(url)
        except ImageError as error:
            raise _undecodable(path, str(error)) from error


def images_in(text: str, images: Sequence[Image]) -> tuple[Image, ...]:
    """The images of a rendered prompt, in its order.

    Raises:
      Refusal: ``ChatTemplateError``, the template left one out.
    """
    order = [int(found[1]) for found in _MARKER.finditer(text)]
    lost = sorted(set(range(len(images))) - set(order))
    if lost:
        raise Refusal(
            "ChatTemplateError",
            f"the chat template leaves out {len(lost)} of {len(images)} images (the first is "
            f"number {lost[0] + 1} of the conversation): it cannot show images in such a message",
        )
    return tuple(images[number] for number in order)


def texts_between(text: str) -> list[str]:
    """Return what stands before, between and after the images of a prompt: one text more than
    images."""
    return _MARKER.split(text)[::2]


def readable(text: str) -> str:
    """The prompt with what llama.cpp calls an image in its place."""
    return _MARKER.sub(READABLE_MARKER, text)


def _image_parts(
    messages: Sequence[Mapping[str, object]],
) -> Iterator[tuple[str, dict[str, object], str]]:
    """The path, the part and the URL of every image; Refusal for one without, or one too many."""
    num_images = 0
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            if isinstance(part, dict) and part.get("type") in IMAGE_PARTS:
                path, url = f"messages[{number}].content[{place}]", _url_of(part)
                if url is None:
                    raise _undecodable(path, "expected an address in image_url.url, got none")
                num_images += 1
                if num_images > MAX_IMAGES:
                    raise _undecodable(path, f"more than {MAX_IMAGES} images in one request")
                yield path, part, url


def _url_of(part: Mapping[str, object]) -> str | None:
    """Both spellings: OpenAI's, and the shorter one of Hugging Face."""
    for name in ("image_url", "image", "url"):
        value = part.get(name)
        if isinstance(value, Mapping):
            value = value.get("url")
        if isinstance(value, str):
            return value
    return None


def _undecodable(path: str, reason: str) -> Refusal:
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
