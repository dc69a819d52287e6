"""Hypothesis strategies for fleet states."""

from __future__ import annotations

from hypothesis import strategies as st

from paddler_trio.wire.paddler.desired_state import (
    HuggingFaceModel,
    InferenceParameters,
    LocalToAgent,
    NoModel,
    UrlModel,
)
from paddler_trio.wire.scalars import float32
from paddler_trio.wire.trio.desired_state_extras import Automatic, EngineOverrides, Extras, Markers
from paddler_trio.wire.trio.fleet_state import (
    DEFAULT,
    DeploymentSpec,
    FleetState,
    Mixed,
    OnFailure,
    RolloutSpec,
)
from paddler_trio.wire.trio.replica_range import ALL_REPLICAS, MAX_REPLICAS, ReplicaRange

NAMES = ("coder", "chat", "embed.small", "a")
models = st.sampled_from(
    [
        LocalToAgent("/m.gguf"),
        LocalToAgent("/n.gguf"),
        UrlModel("https://host/m.gguf"),
        HuggingFaceModel(filename="m.gguf", repo_id="org/repo", revision="main"),
    ]
)
parameters = st.builds(
    InferenceParameters,
    context_size=st.sampled_from([1024, 8192]),
    temperature=st.sampled_from([0.25, 0.8]),
    enable_embeddings=st.booleans(),
)
extras = st.builds(
    Extras,
    engine=st.builds(EngineOverrides, max_drafts=st.none() | st.integers(0, 2)),
    markers=st.none() | st.builds(Markers, tool_open=st.sampled_from(["", "<t>"])),
    auto=st.none() | st.builds(Automatic, context_size=st.booleans()),
)
replicas = st.just(ALL_REPLICAS) | st.lists(
    st.integers(0, MAX_REPLICAS), min_size=2, max_size=2
).map(lambda both: ReplicaRange(min(both), max(both)))
seconds = st.floats(1, 3600, width=32).map(float32)
rollouts = st.builds(
    RolloutSpec,
    max_unavailable=st.integers(1, 9),
    max_unavailable_percent=st.none() | st.integers(1, 100),
    min_capacity=st.integers(0, 99),
    canary=st.integers(0, 3),
    min_ready_s=seconds,
    drain_deadline_s=seconds,
    progress_deadline_s=seconds,
    on_failure=st.sampled_from(OnFailure),
    mixed=st.sampled_from(Mixed),
    prefetch=st.booleans(),
)


def specs(name: str) -> st.SearchStrategy[DeploymentSpec]:
    """Deployments of one name; their aliases begin with it, so that no two have the same."""
    return st.builds(
        DeploymentSpec,
        name=st.just(name),
        model=models | st.builds(NoModel) if name == DEFAULT else models,
        projection=st.builds(NoModel) | models,
        parameters=parameters,
        extras=extras,
        template=st.none() | st.sampled_from(["{{ x }}", "{{ y }}"]),
        aliases=st.lists(st.sampled_from([f"{name}-x", f"{name}/y:1"]), unique=True).map(tuple),
        slots=st.none() | st.integers(1, 8),
        replicas=replicas,
        where=st.lists(st.sampled_from(["gpu=yes", "agent=the first one"]), unique=True).map(tuple),
        idle_ttl=st.none() | seconds,
        priority=st.integers(-9, 9),
        rollout=rollouts,
    )


states = (
    st.lists(st.sampled_from([DEFAULT, *NAMES]), unique=True, max_size=4)
    .flatmap(lambda names: st.tuples(*map(specs, names)))
    .map(FleetState)
)
