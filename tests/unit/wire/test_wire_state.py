from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_values import values_of

from effort import examples
from paddler_trio.wire.codec import dumps, loads, structure, unstructure
from paddler_trio.wire.paddler.agent_issue import (
    AgentIssue,
    ChatTemplateDoesNotCompile,
    DownloadInterrupted,
    ModelCannotBeLoaded,
    ModelPath,
    SlotCannotStart,
    sorted_issues,
)
from paddler_trio.wire.paddler.desired_state import (
    AgentDesiredState,
    BalancerDesiredState,
    DesiredModel,
    HuggingFaceModel,
    InferenceParameters,
    LocalToAgent,
    UrlModel,
    applicable_state,
    desired_state_problem,
    state_digest,
)
from paddler_trio.wire.paddler.status import (
    AgentStateApplicationStatus,
    ChatTemplate,
    SlotAggregatedStatusSnapshot,
)

DEFAULT = BalancerDesiredState.default()
fast = settings(max_examples=examples(40), deadline=None)


def with_parameters(parameters: InferenceParameters) -> BalancerDesiredState:
    return attrs.evolve(DEFAULT, inference_parameters=parameters)


def test_only_two_zeros_are_refused_among_the_parameters() -> None:
    zeros = InferenceParameters(n_batch=0, context_size=0, top_k=0)
    assert desired_state_problem(DEFAULT) is None
    assert desired_state_problem(with_parameters(zeros)) is None
    image = with_parameters(InferenceParameters(image_resize_to_fit=0))
    assert desired_state_problem(image) == "image_resize_to_fit must be greater than zero"
    documents = with_parameters(InferenceParameters(embedding_batch_size=0))
    assert desired_state_problem(documents) == "embedding_batch_size must be greater than zero"


@fast
@given(values_of(BalancerDesiredState))
def test_agents_get_everything_but_a_template_not_in_use(state: BalancerDesiredState) -> None:
    applied = applicable_state(state)
    if state.use_chat_template_override:
        assert applied.chat_template_override == state.chat_template_override
    else:
        assert applied.chat_template_override is None
    assert applied.inference_parameters == state.inference_parameters
    assert applied.model == state.model
    assert applied.multimodal_projection == state.multimodal_projection


@fast
@given(values_of(AgentDesiredState))
def test_a_digest_survives_the_wire(state: AgentDesiredState) -> None:
    again = structure(loads(dumps(unstructure(state))), AgentDesiredState)
    assert state_digest(again) == state_digest(state)


def test_digests_tell_states_apart() -> None:
    base = applicable_state(DEFAULT)
    states = [
        base,
        attrs.evolve(base, model=LocalToAgent("/a")),
        attrs.evolve(base, multimodal_projection=LocalToAgent("/a")),
        attrs.evolve(base, chat_template_override=ChatTemplate("")),
        attrs.evolve(base, inference_parameters=InferenceParameters(temperature=0.81)),
    ]
    digests = [state_digest(state) for state in states]
    assert all(a != b for a, b in itertools.combinations(digests, 2))
    assert all(len(digest) == 64 for digest in digests)
    # Pinned: agents and balancers of different builds compare these.
    assert digests[0] == "67fb783e602137a5b7c79ffdf4f8fea7a9537cab88b43163701416b3a04bd118"


ISSUES = (
    ChatTemplateDoesNotCompile("a", ModelPath("/m"), "{{"),
    ChatTemplateDoesNotCompile("a", ModelPath("/n"), "{"),
    ChatTemplateDoesNotCompile("b", ModelPath("/a"), ""),
    DownloadInterrupted("http://z"),
    ModelCannotBeLoaded("/a"),
    ModelCannotBeLoaded("/b"),
    SlotCannotStart("e", 2),
    SlotCannotStart("e", 10),
)


@given(st.permutations(ISSUES), st.sampled_from(ISSUES))
def test_issues_are_a_set_sorted_by_variant_and_payload(
    issues: list[AgentIssue], twice: AgentIssue
) -> None:
    assert sorted_issues([*issues, twice]) == ISSUES


def test_a_snapshot_writes_its_issues_sorted() -> None:
    snapshot = SlotAggregatedStatusSnapshot(
        desired_slots_total=1,
        download_current=0,
        download_filename=None,
        download_indeterminate=True,
        download_total=0,
        issues=(ISSUES[7], ISSUES[4], ISSUES[0], ISSUES[4]),
        model_path=None,
        slots_processing=0,
        slots_total=0,
        state_application_status=AgentStateApplicationStatus.STUCK,
        uses_chat_template_override=False,
        version=3,
    )
    written = unstructure(snapshot)
    assert isinstance(written, dict)
    assert written["issues"] == [
        {
            "ChatTemplateDoesNotCompile": {
                "error": "a",
                "model_path": {"model_path": "/m"},
                "template_content": "{{",
            }
        },
        {"ModelCannotBeLoaded": {"model_path": "/a"}},
        {"SlotCannotStart": {"error": "e", "slot_index": 10}},
    ]


@pytest.mark.parametrize("place", ["model", "multimodal_projection"])
@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (LocalToAgent("/models/a\0b.gguf"), "LocalToAgent has a NUL at character 9"),
        (LocalToAgent("/m/\ud800.gguf"), "LocalToAgent is no Unicode: half a surrogate pair at"),
        (LocalToAgent("/" + "ä" * 2048), "LocalToAgent has 4097 bytes, the limit is 4095"),
        (UrlModel("https://a/\0"), "Url.url has a NUL at character 10"),
        (UrlModel("https://a/" + "b" * 16384), "Url.url has 16394 bytes, the limit is 16384"),
        (HuggingFaceModel("a\0", "b/c", "main"), "HuggingFace.filename has a NUL"),
        (HuggingFaceModel("a", "b/\0c", "main"), "HuggingFace.repo_id has a NUL"),
        (HuggingFaceModel("a", "b/c", "\udfff"), "HuggingFace.revision is no Unicode"),
    ],
)
def test_a_name_that_no_system_takes_is_refused(
    place: str, model: DesiredModel, problem: str
) -> None:
    state = attrs.evolve(DEFAULT, **{place: model})
    assert (desired_state_problem(state) or "").startswith(f"{place}.{problem}")


@pytest.mark.parametrize(
    "model", [LocalToAgent("/" + "a" * 4094), LocalToAgent("/a\nb"), UrlModel("h" * 16384)]
)
def test_an_unusual_name_is_not_refused(model: DesiredModel) -> None:
    assert desired_state_problem(attrs.evolve(DEFAULT, model=model)) is None


@pytest.mark.parametrize("name", ["context_size", "n_batch"])
def test_more_tokens_than_llama_cpp_counts_are_refused(name: str) -> None:
    assert desired_state_problem(with_parameters(InferenceParameters(**{name: 2**31 - 1}))) is None
    over = with_parameters(InferenceParameters(**{name: 2**31}))
    assert desired_state_problem(over) == f"{name} is 2147483648 tokens, the limit is 2147483647"
