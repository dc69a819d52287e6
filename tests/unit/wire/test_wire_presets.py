"""Presets as operators write them: what is taken, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from paddler_trio.errors import WireError
from paddler_trio.wire.codec import structure, unstructure
from paddler_trio.wire.trio.fleet_state import FleetState
from paddler_trio.wire.trio.presets import MAX_JSON_BYTES, MAX_PRESETS, Preset

EVERYTHING: dict[str, Any] = {
    "name": "qwen:8b-terse",
    "system": "Be brief.",
    "system_place": "instead",
    "sampling": {"temperature": 0.25, "top_k": 5, "samplers": ["top_k", "temperature"]},
    "thinking": False,
    "max_reasoning_tokens": 7,
    "stop": ["END"],
    "max_tokens": {"default": 16, "least": 2, "most": 32},
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
    "constraint": {"type": "choice", "choices": ["yes", "no"]},
    "lora": [{"name": "law", "scale": 0.5}, {"id": 0, "scale": 1.0}],
    "template_kwargs": {"style": "short"},
    "forced": ["temperature", "constraint"],
    "ignore": ["options.num_ctx"],
    "refuse": ["tools"],
}


def test_everything_is_read_and_written_again() -> None:
    preset = structure(EVERYTHING, Preset)
    assert unstructure(preset) == EVERYTHING
    assert structure(unstructure(preset), Preset) == preset
    assert unstructure(structure({"name": "x"}, Preset)) == {"name": "x"}


def test_other_spellings_are_taken() -> None:
    loose = {
        "name": "x",
        "stop": "END",
        "max_tokens": 9,
        "sampling": {"repeat_penalty": 1.5},
        "forced": "repeat_penalty",
        "constraint": {"type": "json_schema", "schema": {"type": "object"}},
    }
    preset = structure(loose, Preset)
    assert preset.stop == ("END",)
    assert preset.max_tokens.default == 9
    assert preset.sampling.penalty_repeat == 1.5
    assert preset.forced == ("penalty_repeat",)
    assert unstructure(preset)["constraint"] == {  # type: ignore[index]
        "type": "json_schema",
        "schema": '{"type":"object"}',
    }
    gbnf = structure(
        {"name": "x", "constraint": {"type": "gbnf", "grammar": "root ::= []"}}, Preset
    )
    assert gbnf.constraint is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sytem": "a"}, "preset 'x': unknown field 'sytem', did you mean 'system'?"),
        ({"sampling": {"temprature": 1}}, "'temprature', did you mean 'temperature'? @ $.sampling"),
        ({"max_tokens": {"max": 1}}, "unknown field 'max'"),
        ({"sampling": {"temperature": -1}}, "temperature is -1, must be at least 0"),
        ({"sampling": {"top_p": 2}}, "top_p is 2, must be at least 0 and at most 1"),
        ({"sampling": {"samplers": ["top_q"]}}, "'top_q' is no stage, did you mean 'top_p'?"),
        (
            {"sampling": {"penalty_repeat": 1, "repeat_penalty": 1}},
            "'repeat_penalty' is 'penalty_repeat', which is there already",
        ),
        ({"max_tokens": {"least": 9, "most": 3}}, "least is 9, must be at most most, which is 3"),
        ({"max_tokens": {"default": 9, "most": 3}}, "default is 9, must be 1 to 3"),
        ({"max_tokens": 0}, "expected an integer in 1..2147483647, got 0 @ $.max_tokens.default"),
        ({"forced": ["temperature"]}, "'temperature' is nothing that this preset sets"),
        (
            {"sampling": {"temperature": 1}, "forced": ["temperatur"]},
            "sets, did you mean 'temperature'? @ $.forced[0]",
        ),
        ({"ignore": ["messages"]}, "'messages' is needed @ $.ignore[0]"),
        ({"refuse": ["a b"]}, "'a b' is no name of a field @ $.refuse[0]"),
        ({"system_place": "after"}, "unknown variant 'after', expected before or instead"),
        ({"stop": [""]}, "an empty text ends nothing @ $.stop[0]"),
        ({"stop": ["a"] * 17}, "17 entries, the limit is 16 @ $.stop"),
        ({"system": "x" * 70_000}, "70000 characters, the limit is 65536 @ $.system"),
        ({"lora": [{"name": "a", "id": 1}]}, "by its id or by its name, one of them"),
        ({"tools": [{"name": "f"}]}, 'a tool is {"type": "function"'),
        ({"template_kwargs": {"a": "x" * MAX_JSON_BYTES}}, "bytes, the limit is 131072"),
        ({"name": "default"}, "'default' cannot name a preset"),
        ({"name": "two words"}, "'two words' cannot name a preset"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(WireError) as refused:
        structure({"name": "x", **fields}, Preset)
    assert words in str(refused.value)


def deployment(name: str, **fields: object) -> dict[str, object]:
    return {"name": name, "model": {"LocalToAgent": "/m.gguf"}, **fields}


@pytest.mark.parametrize(
    ("deployments", "words"),
    [
        (
            [deployment("a", presets=[{"name": "a"}])],
            "the preset 'a' is a name of 'a' already @ $.deployments[0].presets[0].name",
        ),
        ([deployment("a", presets=[{"name": "b"}]), deployment("b")], "the preset 'b' is a name"),
        (
            [deployment("a", aliases=["p"]), deployment("b", presets=[{"name": "p"}])],
            "deployment 'b': the preset 'p' is a name of 'a' already",
        ),
        ([deployment("a", presets=[{"name": "p"}] * 2)], "the preset 'p' is a name of 'a'"),
        (
            [deployment("a", presets=[{"name": f"p{n}"} for n in range(MAX_PRESETS + 1)])],
            "65 presets, the limit is 64",
        ),
        (
            [deployment("a", presets=[{"name": "p", "x": 1}])],
            "deployment 'a': preset 'p': unknown field 'x' @ $.deployments[0].presets[0]",
        ),
    ],
)
def test_names_are_unique(deployments: list[object], words: str) -> None:
    with pytest.raises(WireError) as refused:
        structure({"deployments": deployments}, FleetState)
    assert words in str(refused.value)


def test_a_fleet_knows_its_presets_and_an_older_version_reads_one_without() -> None:
    law = {"name": "law", "source": {"LocalToAgent": "/law.gguf"}}
    tax = {"name": "tax", "source": {"LocalToAgent": "/tax.gguf"}}
    extras = {"adapters": [tax, law]}
    first = deployment("a", presets=[EVERYTHING], extras=extras)
    state = structure({"deployments": [first, deployment("b")]}, FleetState)
    spec, preset = state.presets["qwen:8b-terse"]
    assert (spec.name, preset.name) == ("a", "qwen:8b-terse")
    plain = structure(
        {"deployments": [deployment("a", extras=extras), deployment("b")]}, FleetState
    )
    assert "presets" not in unstructure(plain)["deployments"][0]  # type: ignore[index]
    assert spec.digest == plain.deployments[0].digest, "agents are sent the same"


def test_adapters_of_a_preset_are_those_of_its_deployment() -> None:
    def fleet(adapters: list[Any]) -> FleetState:
        deployment = {
            "name": "a",
            "model": {"LocalToAgent": "/m.gguf"},
            "extras": {"adapters": adapters},
            "presets": [{"name": "lawyer", "lora": [{"name": "law"}]}],
        }
        return structure({"deployments": [deployment]}, FleetState)

    law = {"name": "law", "source": {"LocalToAgent": "/law.gguf"}}
    assert fleet([law]).presets["lawyer"][1].lora[0].name == "law"
    with pytest.raises(WireError, match=r"no adapter 'law'.*deployments\[0\]\.presets\[0\]\.lora"):
        fleet([])
