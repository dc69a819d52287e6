"""What an answer may be continued by: the same weights, the same template, and no other."""

from __future__ import annotations

import attrs
import pytest

from paddler_trio.language.model_language import LanguageSource, read_language
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    InferenceParameters,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.paddler.status import ChatTemplate
from paddler_trio.wire.trio.desired_state_extras import Markers

DESIRED = AgentDesiredState(
    chat_template_override=None,
    inference_parameters=InferenceParameters(),
    model=LocalToAgent(str(BUNDLED_MODEL)),
    multimodal_projection=NoModel(),
)


def fingerprint(desired: AgentDesiredState, markers: Markers | None = None) -> str:
    language = read_language(
        LanguageSource(paths=(str(BUNDLED_MODEL),), desired=desired, markers=markers)
    )
    language.vocabulary.close()
    return language.fingerprint


@pytest.fixture(scope="module")
def own() -> str:
    return fingerprint(DESIRED)


@pytest.mark.parametrize(
    "template", ["{{ messages[0]['content'] }}", "{{ messages[0]['content']}}"]
)
def test_another_template_is_another_model(own: str, template: str) -> None:
    assert fingerprint(attrs.evolve(DESIRED, chat_template_override=ChatTemplate(template))) != own


def test_other_settings_of_sampling_are_the_same_model(own: str) -> None:
    parameters = InferenceParameters(temperature=0.1, context_size=512)
    assert fingerprint(attrs.evolve(DESIRED, inference_parameters=parameters)) == own
