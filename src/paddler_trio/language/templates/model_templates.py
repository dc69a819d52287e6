"""The chat templates of a model file, or the one the operator set over them."""

from __future__ import annotations

from paddler_trio.language.templates.conversation import (
    NAMED_TEMPLATES,
    ModelTemplate,
    ModelTemplates,
)
from paddler_trio.language.templates.token_escaping import ControlTokenEscaping
from paddler_trio.language.vocabulary import Vocabulary


def templates_of(
    vocabulary: Vocabulary, default: str, *, is_override: bool, trusts_messages: bool = False
) -> ModelTemplates:
    """Compile and probe what is in force; milliseconds to tens of them.

    Args:
      default: source of the default template.
      is_override: the operator set it: it takes the place of every template of the file (W8).
      trusts_messages: control tokens that messages spell become control tokens.

    Raises:
      ChatTemplateError: one of them does not compile.
    """
    names = () if is_override else NAMED_TEMPLATES
    named = {name: vocabulary.chat_template(name) for name in names}
    return ModelTemplates(
        default=ModelTemplate.compile(default),
        named={name: ModelTemplate.compile(each) for name, each in named.items() if each},
        bos_token=vocabulary.bos_text,
        eos_token=vocabulary.eos_text,
        newline=vocabulary.nl_text,
        escaping=ControlTokenEscaping(()) if trusts_messages else vocabulary.escaping,
    )
