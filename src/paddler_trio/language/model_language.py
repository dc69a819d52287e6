"""The language of a model: vocabulary, templates and parameters, read once from its file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import attrs
import structlog

from paddler_trio.errors import ChatTemplateError, ModelFileError, PaddlerError
from paddler_trio.language.language_source import LanguageSource
from paddler_trio.language.templates.conversation import (
    NAMED_TEMPLATES,
    ModelTemplate,
    ModelTemplates,
)
from paddler_trio.language.templates.token_escaping import ControlTokenEscaping
from paddler_trio.language.vocabulary import Vocabulary
from paddler_trio.wire.codec import dumps, unstructure
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    ChatTemplateDoesNotCompile,
    ModelCannotBeLoaded,
    ModelPath,
)
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.adapters import Adapter
from paddler_trio.wire.trio.desired_state_extras import Markers


def templates_of(
    vocabulary: Vocabulary, default: str, *, is_override: bool, trusts_messages: bool = False
) -> ModelTemplates:
    """Compile and probe what is in force; milliseconds to tens of them.

    Args:
      default: source of the default template.
      is_override: the operator set it: it takes the place of every template of the file.
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


log = structlog.get_logger("language")

CHATML = """\
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content or '' }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
"""For model files without a template, as everywhere in the field; most of those are base models,
which are asked to continue a text."""
NO_TEMPLATE = "{{ raise_exception('the chat template of this model does not compile') }}"
"""Models that embed need none."""
_FINGERPRINT_BYTES = 1024 * 1024


class LanguageError(PaddlerError):
    """The model's vocabulary or template cannot be used; ``issue`` is what operators see."""

    def __init__(self, issue: AgentIssue, message: str) -> None:
        super().__init__(message)
        self.issue = issue


@attrs.frozen
class Language:
    """A loaded model as its prompts see it: all of it immutable, shared by every request."""

    vocabulary: Vocabulary
    templates: ModelTemplates
    parameters: InferenceParameters
    fingerprint: str
    """The same on every agent that would answer alike: template and files, of adapters too."""
    markers: Markers | None = None
    """What an operator sets for the sections of its answers, over what its template has."""
    adapters: tuple[Adapter, ...] = ()
    """What requests choose from."""


def read_language(source: LanguageSource) -> Language:
    """Read vocabulary and template of a model file; LanguageError. Blocking, up to seconds."""
    path, desired, markers = source.paths[0], source.desired, source.markers
    try:
        vocabulary = Vocabulary.load(Path(path))
    except ModelFileError as error:
        raise LanguageError(ModelCannotBeLoaded(path), str(error)) from error
    override = desired.chat_template_override
    template = override.content if override is not None else vocabulary.chat_template() or CHATML
    can_do_without = override is None and desired.inference_parameters.enable_embeddings
    trusts = source.trusts_messages
    try:
        templates = templates_of(
            vocabulary, template, is_override=override is not None, trusts_messages=trusts
        )
    except ChatTemplateError as error:
        if not can_do_without:
            issue = ChatTemplateDoesNotCompile(str(error), ModelPath(path), template)
            raise LanguageError(issue, str(error)) from error
        log.warning("the model's chat template is left out", model=path, reason=str(error))
        template = NO_TEMPLATE
        templates = templates_of(vocabulary, template, is_override=True, trusts_messages=trusts)
    return Language(
        vocabulary=vocabulary,
        templates=templates,
        parameters=desired.inference_parameters,
        fingerprint=_fingerprint(source.paths, template, markers),
        markers=markers,
        adapters=source.adapters,
    )


def _fingerprint(paths: Sequence[str], template: str, markers: Markers | None) -> str:
    """Distinguishes models without reading gigabytes: size, both ends, template and markers.

    A GGUF file begins with its metadata and vocabulary and ends with weights.
    """
    digest = hashlib.sha256(template.encode())
    if markers is not None:  # an answer is not continued where its sections end elsewhere
        digest.update(dumps(unstructure(markers)))
    for path in paths:
        with Path(path).open("rb") as file:
            size_bytes = file.seek(0, 2)
            digest.update(size_bytes.to_bytes(8, "big"))
            for start in (0, max(0, size_bytes - _FINGERPRINT_BYTES)):
                file.seek(start)
                digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()
