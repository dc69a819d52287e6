"""A fleet in TOML means what its JSON means, and is refused where that would be."""

from __future__ import annotations

import pytest

from paddler_trio.errors import WireError
from paddler_trio.wire.paddler.desired_state import (
    DesiredModel,
    HuggingFaceModel,
    InferenceParameters,
    LocalToAgent,
    NoModel,
)
from paddler_trio.wire.trio.adapters import Adapter
from paddler_trio.wire.trio.desired_state_extras import Automatic, EngineOverrides, Extras
from paddler_trio.wire.trio.fleet_state import DeploymentSpec, FleetState, Mixed, RolloutSpec
from paddler_trio.wire.trio.fleet_toml import MAX_TOML_BYTES, FleetFile, fleet_of_toml
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.replica_range import ReplicaRange
from paddler_trio.wire.trio.work import SamplingOverrides

SQL = Adapter(name="sql", source=LocalToAgent("/sql.gguf"), scale=0.5)
WHOLE = """
note = "a larger context"

[[deployments]]
name = "coder"
model = "hf:org/repo:Q4_K_M"
template = { file = "chat.jinja" }
aliases = ["gpt-4o"]
slots = 4
replicas = "1..3"
where = ["gpu=yes", "agent=attic"]
idle_ttl = 300
priority = 5

[deployments.parameters]
context_size = 32768
n_gpu_layers = "auto"
temperature = 0

[deployments.extras.engine]
max_drafts = 2

[[deployments.adapters]]
name = "sql"
source = "/sql.gguf"
scale = 0.5

[deployments.rollout]
min_ready_s = 30
mixed = "hold"

[[deployments.presets]]
name = "coder-terse"
system = { file = "chat.jinja" }
sampling = { temperature = 0.5 }

[[deployments.presets]]
name = "coder-plain"

[[deployments]]
name = "default"
model = "/m.gguf"
projection = "/p.gguf"
template = "{{ x }}"
replicas = "all"
"""


def hub_file(name: str) -> HuggingFaceModel:
    return HuggingFaceModel(filename=name, repo_id="org/repo", revision="c0ffee")


class Sources:
    """What texts name, and how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> tuple[DesiredModel, DesiredModel | None]:
        self.asked.append(text)
        if text == "hf:org/repo:Q4_K_M":
            return hub_file("m.gguf"), hub_file("mmproj.gguf")
        if text == "none":
            return NoModel(), None
        if text.startswith("/"):
            return LocalToAgent(text), None
        raise WireError(f"{text!r} names nothing")


def read_file(path: str) -> str:
    if path == "chat.jinja":
        return "{{ y }}"
    raise WireError(f"{path}: no such file")


def read(text: str, sources: Sources | None = None) -> FleetFile:
    return fleet_of_toml(text, read_source=sources or Sources(), read_file=read_file)


def refusal(text: str) -> str:
    with pytest.raises(WireError) as caught:
        read(text)
    return str(caught.value)


def test_every_name_means_what_it_means_in_json() -> None:
    assert read(WHOLE) == FleetFile(
        FleetState(
            (
                DeploymentSpec(
                    name="coder",
                    model=hub_file("m.gguf"),
                    projection=hub_file("mmproj.gguf"),
                    parameters=InferenceParameters(context_size=32768, temperature=0.0),
                    extras=Extras(
                        engine=EngineOverrides(max_drafts=2),
                        auto=Automatic(n_gpu_layers=True),
                        adapters=(
                            Adapter(name="sql", source=LocalToAgent("/sql.gguf"), scale=0.5),
                        ),
                    ),
                    template="{{ y }}",
                    aliases=("gpt-4o",),
                    slots=4,
                    replicas=ReplicaRange(1, 3),
                    where=("gpu=yes", "agent=attic"),
                    idle_ttl=300.0,
                    priority=5,
                    rollout=RolloutSpec(min_ready_s=30.0, mixed=Mixed.HOLD),
                    presets=(
                        Preset(
                            name="coder-terse",
                            system="{{ y }}",
                            sampling=SamplingOverrides(temperature=0.5),
                        ),
                        Preset(name="coder-plain"),
                    ),
                ),
                DeploymentSpec(
                    name="default",
                    model=LocalToAgent("/m.gguf"),
                    projection=LocalToAgent("/p.gguf"),
                    template="{{ x }}",
                ),
            )
        ),
        note="a larger context",
    )


def test_an_empty_document_is_an_empty_fleet() -> None:
    assert read("") == FleetFile(FleetState(), "")


def test_a_projection_that_is_named_wins_over_the_repositorys() -> None:
    text = '[[deployments]]\nname = "a"\nmodel = "hf:org/repo:Q4_K_M"\nprojection = "none"'
    assert read(text).state.deployments[0].projection == NoModel()


def test_a_source_that_is_named_often_is_asked_for_once() -> None:
    sources = Sources()
    tables = (f'[[deployments]]\nname = "d{n}"\nmodel = "hf:org/repo:Q4_K_M"' for n in range(9))
    assert len(read("\n".join(tables), sources).state.deployments) == 9
    assert sources.asked == ["hf:org/repo:Q4_K_M"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x =", "not valid TOML: "),
        ("x = " + "[" * 100_000, "TOML nested too deeply"),
        ("x = " + "1" * 5_000, "not valid TOML: "),
        ("note = 0x" + "f" * 6_000, "expected a string, got a number of 24000 bits @ $.note"),
        ("color = 1", "unknown field 'color', expected deployments or note @ $"),
        ("note = 1", "expected a string, got 1 @ $.note"),
        (f'note = "{"x" * 1025}"', "1025 characters, the limit is 1024 @ $.note"),
        ("deployments = 1", "expected [[deployments]], got 1 @ $.deployments"),
        ("deployments = [1]", "expected an object, got 1 @ $.deployments[0]"),
        ("#" * (MAX_TOML_BYTES + 1), "the file has 1048577 bytes, the limit is 1048576"),
        ("[[deployments]]\n" * 66, "66 deployments, the limit is 64 beside default @ $.deploym"),
        ("[[deployments]]\nname = 'a'", "deployment 'a': required field missing @ $.deployments"),
        ("[[deployments]]\nmodel = '/m'", "required field missing @ $.deployments[0].name"),
        (
            "[[deployments]]\nmodel = 'x'",
            "deployment 'number 1': 'x' names nothing @ $.deployments",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = { Url = 1 }",
            "deployment 'a': expected the text of a source, got an object @ $.deployments[0].model",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = '/m'\nprojection = 'hf:org/repo:Q4_K_M'",
            "deployment 'a': a repository: write hf:org/repo/file @ $.deployments[0].projection",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = '/m'\ntemplate = { file = 'gone' }",
            "deployment 'a': gone: no such file @ $.deployments[0].template",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = '/m'\ntemplate = { path = 'chat.jinja' }",
            """deployment 'a': expected a text or { file = "path" } @ $.deployments[0].template""",
        ),
        (
            "[[deployments]]\nname='a'\nmodel='/m'\nadapters=[{source='hf:org/repo:Q4_K_M'}]",
            "a repository: write hf:org/repo/file @ $.deployments[0].adapters[0].source",
        ),
        (
            "[[deployments]]\nname='a'\nmodel='/m'\nadapters=[{name='b', source=1}]",
            "expected the text of a source, got 1 @ $.deployments[0].adapters[0].source",
        ),
        (
            "[[deployments]]\nname='a'\nmodel='/m'\nadapters=["
            + "{name='b', source='/b'}," * 65
            + "]",
            "65 adapters, the limit is 64 @ $.deployments[0].adapters",
        ),
        (
            "[[deployments]]\nname='a'\nmodel='/m'\nextras.adapters=[]\nadapters=[]",
            "adapters stand beside extras and in them: leave one out @ $.deployments[0].adapters",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = '/m'\nparameters.top_k = 'auto'",
            "deployment 'a': expected an integer",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = '/m'\nparameters.temperature = nan",
            "deployment 'a': ",
        ),
        (
            "[[deployments]]\nname = 'a'\nmodel = '/m'\nidle_ttl = 2026-01-01",
            "deployment 'a': expected a number, got 2026-01-01 @ $.deployments[0].idle_ttl",
        ),
        (
            "[[deployments]]\nname='a'\nmodel='/m'\nreplicas=0x" + "f" * 6_000,
            "got a number of 24000 bits @ $.deployments[0].replicas",
        ),
        (
            "[[deployments]]\n" + "a." * 100_000 + "a = 1",
            "not valid TOML: line 2: a key has more parts than the limit, 32",
        ),
        (
            "[[deployments]]\nname='a'\nmodel='/m'\nextras=1\nparameters.context_size = 'auto'",
            "deployment 'a': expected an object, got 1 @ $.deployments[0].extras",
        ),
    ],
)
def test_a_refusal_says_where(text: str, problem: str) -> None:
    assert problem in refusal(text)
