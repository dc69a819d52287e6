"""What ``model set`` and ``model swap`` understand, and what they say they will change."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import attrs
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.cli.fleet.issue_words import WORDS, issue_words, issues_words
from paddler_trio.cli.model import fit_command
from paddler_trio.cli.model.model import change
from paddler_trio.cli.model.model_extras import RELOADING, changes
from paddler_trio.cli.model.model_order import given_parameters, model_of, parameter_names
from paddler_trio.cli.terminal import printable
from paddler_trio.models.model_reference import text_of
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.engine.engine_pipe import LoadModel
from paddler_trio.wire.paddler.agent_issue import AgentIssue, ModelFileDoesNotExist, SlotCannotStart
from paddler_trio.wire.paddler.desired_state import (
    BalancerDesiredState,
    DesiredModel,
    HuggingFaceModel,
    InferenceParameters,
    KvCacheDtype,
    LocalToAgent,
    NoModel,
    UrlModel,
)
from paddler_trio.wire.paddler.results import PoolingType
from paddler_trio.wire.paddler.status import ChatTemplate

HUGGING_FACE = HuggingFaceModel(filename="sub/m.gguf", repo_id="org/repo", revision="v1")


# --- SOURCE ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("none", NoModel()),
        ("/models/m.gguf", LocalToAgent("/models/m.gguf")),
        ("/models/none", LocalToAgent("/models/none")),
        ("https://host/m.gguf", UrlModel("https://host/m.gguf")),
        ("http://host:81/m.gguf?x=1", UrlModel("http://host:81/m.gguf?x=1")),
        ("hf:org/repo/sub/m.gguf@v1", HUGGING_FACE),
        ("hf:org/repo/m.gguf", HuggingFaceModel("m.gguf", "org/repo", "main")),
    ],
)
def test_a_source_names_one_kind_of_model(source: str, model: DesiredModel) -> None:
    assert model_of(source) == model


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "it is empty"),
        ("nowhere.gguf", "absolute path"),
        ("hf:repo/m.gguf", "hf:org/repo/file"),
        ("hf:org/repo/m.gguf@", "hf:org/repo/file"),
        ("hf:org//m.gguf", "hf:org/repo/file"),
        ("https:///m.gguf", "names no host"),
        ("s3://bucket/m.gguf", "s3 is no way to get files"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_with_the_reason(source: str, told: str) -> None:
    with pytest.raises(typer.BadParameter, match=told):
        model_of(source)


def test_a_relative_path_that_exists_here_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert model_of("m.gguf") == LocalToAgent(str(tmp_path / "m.gguf"))


def test_a_folder_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.BadParameter, match=r"is a folder: name the \.gguf file in it"):
        model_of("models")


part = st.text("abz019-_.", min_size=1).filter(lambda text: text.strip("."))
models = st.one_of(
    st.just(NoModel()),
    part.map(lambda name: LocalToAgent(f"/{name}")),
    part.map(lambda name: UrlModel(f"https://host/{name}")),
    st.builds(
        HuggingFaceModel,
        filename=st.lists(part, min_size=1, max_size=3).map("/".join),
        repo_id=st.tuples(part, part).map("/".join),
        revision=part,
    ),
)


@given(models)
def test_a_model_is_shown_as_the_source_that_names_it(model: DesiredModel) -> None:
    assert model_of(text_of(model)) == model


# --- parameters -----------------------------------------------------------------------------------


def test_every_inference_parameter_has_its_flag() -> None:
    flags = {each.name for each in attrs.fields(fit_command.ParameterFlags)}
    assert flags == set(parameter_names())
    assert flags <= inspect.signature(change).parameters.keys()


def test_the_help_names_every_type_there_is() -> None:
    for dtype in KvCacheDtype:
        assert dtype.value in str(fit_command._CACHE_TYPES)
    for pooling in PoolingType:
        assert pooling.value in str(fit_command._POOLING_TYPES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 'temperature = 1\nk_cache_dtype = "F16"\ntop_k = 3'),
        ("p.json", '{"temperature": 1, "k_cache_dtype": "F16", "top_k": 3}'),
    ],
)
def test_flags_win_over_the_file(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    flags = {"top_k": 9, "top_p": None, "enable_embeddings": False}
    assert given_parameters(flags, file) == {
        "temperature": 1,
        "k_cache_dtype": "F16",
        "top_k": 9,
        "enable_embeddings": False,
    }


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("p.toml", "temprature = 1", "'temprature' is no parameter; there are context_size, "),
        ("p.toml", "top_k = 1.5", "p.toml: top_k: "),
        ("p.toml", "top_k =", "p.toml: "),
        ("p.json", "[]", "holds no parameters"),
        ("p.json", "{", "p.json: "),
        ("p.yaml", "top_k: 1", "neither .toml nor .json"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(typer.BadParameter, match=told):
        given_parameters({}, file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="No such file"):
        given_parameters({}, tmp_path / "p.toml")


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_batch", -1), ("context_size", 2**32), ("k_cache_dtype", "q8"), ("temperature", "nan")],
)
def test_a_value_out_of_range_is_refused_with_its_flag(name: str, value: object) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        given_parameters({name: value}, None)
    assert refused.value.param_hint == f"--{name.replace('_', '-')}"


# --- what changes ---------------------------------------------------------------------------------


def test_only_what_the_engine_is_started_with_needs_a_reload() -> None:
    fields = {field.name for field in attrs.fields(LoadModel)} | {"enable_embeddings"}
    started_with = fields & set(parameter_names())
    assert started_with == RELOADING & set(parameter_names())


def test_changes_name_the_field_and_both_values() -> None:
    old = BalancerDesiredState.default()
    new = attrs.evolve(
        old,
        model=HUGGING_FACE,
        inference_parameters=InferenceParameters(temperature=0.1, context_size=512),
        chat_template_override=ChatTemplate("{{ messages }}"),
        use_chat_template_override=True,
    )
    found = {change.field: change for change in changes(old, new)}
    assert list(found) == ["model", "chat_template", "context_size", "temperature"]
    assert (found["model"].old, found["model"].new) == ("none", "hf:org/repo/sub/m.gguf@v1")
    assert (found["temperature"].old, found["temperature"].new) == ("0.8", "0.1")
    assert "14 characters" in found["chat_template"].new
    assert [change.field for change in found.values() if change.needs_reload] == [
        "model",
        "context_size",
    ]
    assert changes(new, new) == []


def test_templates_of_equal_length_are_told_apart() -> None:
    states = [
        attrs.evolve(
            BalancerDesiredState.default(),
            chat_template_override=ChatTemplate(text),
            use_chat_template_override=True,
        )
        for text in ("aa", "ab")
    ]
    assert len(changes(*states)) == 1


# --- words ----------------------------------------------------------------------------------------


def test_every_issue_has_words_that_fit_its_fields() -> None:
    kinds = {kind.__name__: kind for kind in get_args(AgentIssue)}
    assert WORDS.keys() == kinds.keys()
    for name, kind in kinds.items():
        fields = {field.name: "X" for field in attrs.fields(kind)}
        assert "X" in issue_words({name: fields})


def test_issues_are_told_in_plain_words() -> None:
    missing = unstructure(ModelFileDoesNotExist("/m.gguf"), AgentIssue)
    slots = [unstructure(SlotCannotStart("no memory", slot), AgentIssue) for slot in range(4)]
    assert issues_words([]) == ""
    assert issues_words([missing, *slots]) == (
        "the agent has no file /m.gguf; no slot can start: no memory"
    )


@pytest.mark.parametrize("issue", [{"Newer": {"x": 1}}, {"ModelCannotBeLoaded": {}}, "odd", 3])
def test_an_issue_nobody_here_knows_is_shown_as_it_came(issue: object) -> None:
    assert issue_words(issue) in {
        '{"Newer": {"x": 1}}',
        '{"ModelCannotBeLoaded": {}}',
        '"odd"',
        "3",
    }


@given(st.text())
def test_nothing_printable_can_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))} & set(shown)
    assert len(shown) == len(text)
