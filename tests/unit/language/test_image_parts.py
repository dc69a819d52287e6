"""Images between the words of a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from paddler_trio.errors import ChatTemplateError
from paddler_trio.language.images import image_parts
from paddler_trio.language.images.image_parts import (
    media_in,
    readable,
    show_media,
    texts_between,
)
from paddler_trio.language.refusal import Refusal
from paddler_trio.language.templates.conversation import (
    ModelTemplate,
    ModelTemplates,
    prepare_conversation,
)
from paddler_trio.wire.trio.work import ConversationPrompt
from vision_models import data_uri, encoded, picture

RED, GREEN = (data_uri(encoded(picture(c))) for c in ((250, 20, 10), (10, 240, 30)))
WITH_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}[img]{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
WITHOUT_PARTS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
LAST_WORD = "<user>{{ messages[-1].content.split() | last }}"


def conversation(*contents: object) -> ConversationPrompt:
    return ConversationPrompt(
        messages=tuple({"role": "user", "content": content} for content in contents)
    )


def image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def words(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def rendered(prompt: ConversationPrompt, template: str) -> str:
    templates = ModelTemplates(default=ModelTemplate.compile(template))
    return prepare_conversation(prompt, templates).text(add_generation_prompt=False)


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        (WITH_PARTS, ["<user>a", "b", "<user>c"]),
        (WITHOUT_PARTS, ["<user>a\n", "\nb\n", "<user>c"]),
    ],
)
def test_an_image_stands_where_it_was_sent(template: str, texts: list[str]) -> None:
    shown = show_media(
        conversation([words("a"), image(RED), words("b"), image(GREEN)], "c"), fit=64
    )
    text = rendered(shown.conversation, template)
    assert texts_between(text) == texts
    red, green = media_in(text, shown.media)
    assert red.pixels != green.pixels
    assert readable(text) == "<__media__>".join(texts)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": RED},
        {"type": "image", "image": RED},
        {"type": "image", "url": RED},
    ],
)
def test_other_spellings_of_an_image(part: dict[str, object]) -> None:
    assert len(show_media(conversation([part]), fit=64).media) == 1


def test_no_message_brings_a_marker_along() -> None:
    forged = "\ufdd10\ufdd2"
    prompt = conversation([words(forged), image(RED), words(forged)])
    shown = show_media(prompt, fit=64)
    texts = texts_between(rendered(shown.conversation, WITH_PARTS))
    assert texts == ["<user>\ufffd0\ufffd", "\ufffd0\ufffd"]


def test_the_conversation_of_the_client_is_not_changed() -> None:
    content: list[Any] = [image(RED)]
    show_media(conversation(content), fit=64)
    assert content == [image(RED)]


def test_a_template_that_leaves_an_image_out_is_to_blame() -> None:
    shown = show_media(conversation([image(RED)], "later"), fit=64)
    with pytest.raises(Refusal, match="leaves out 1 of 1 images and sounds") as refused:
        media_in("later", shown.media)
    assert "ChatTemplateError" in refused.value.result
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.content: .* does not print it"):
        rendered(shown.conversation, LAST_WORD)


def test_the_part_that_cannot_be_shown_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = conversation("a", [words("b"), image("http://a/b.png")])
    with pytest.raises(Refusal, match=r"messages\[1\]\.content\[1\]: remote images") as refused:
        show_media(broken, fit=64)
    assert "ImageDecodingFailed" in refused.value.result
    with pytest.raises(Refusal, match="expected an address"):
        show_media(conversation([{"type": "image_url"}]), fit=64)
    monkeypatch.setattr(image_parts, "MAX_MEDIA", 1)
    with pytest.raises(Refusal, match="more than 1 images and sounds"):
        show_media(conversation([image(RED), image(RED)]), fit=64)
    monkeypatch.setattr(image_parts, "MAX_MEDIA_BYTES", 32)
    with pytest.raises(Refusal, match="3072 bytes as pixels and samples, the limit is 32"):
        show_media(conversation([image(RED)]), fit=64)
