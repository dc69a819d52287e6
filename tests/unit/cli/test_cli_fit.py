"""`auto` on the command line, and verdicts on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from daemon_configs import config_of

from paddler_trio.cli.management_client import AgentView
from paddler_trio.cli.model.fit_run import FitAnswer, _exit_code, show_answers
from paddler_trio.cli.model.memory_words import chosen_words, memory_words
from paddler_trio.cli.model.model_extras import extras_changes
from paddler_trio.cli.model.model_order import (
    changed_extras,
    changed_parameters,
    given_parameters,
)
from paddler_trio.system.settings.agent_config import AgentConfig
from paddler_trio.wire.paddler.desired_state import InferenceParameters
from paddler_trio.wire.trio.desired_state_extras import (
    NO_EXTRAS,
    Automatic,
    EngineOverrides,
    Extras,
)

MIB = 1 << 20


def test_auto_keeps_the_number_and_a_number_takes_auto_back(tmp_path: Path) -> None:
    file = tmp_path / "parameters.toml"
    file.write_text('n_gpu_layers = "auto"\n')
    given = given_parameters({"context_size": "auto", "n_gpu_layers": None}, file)
    current = InferenceParameters(context_size=4096, n_gpu_layers=7)
    assert changed_parameters(current, given) == current
    extras = changed_extras(NO_EXTRAS, given)
    assert extras.automatic == Automatic(context_size=True, n_gpu_layers=True)
    assert {change.field: change.needs_reload for change in extras_changes(NO_EXTRAS, extras)} == {
        "auto.context_size": True,
        "auto.n_gpu_layers": True,
    }
    number = given_parameters({"context_size": "8192", "n_gpu_layers": "-1"}, None)
    assert changed_parameters(current, number).n_gpu_layers == -1
    assert changed_extras(extras, number) == NO_EXTRAS
    kept = Extras(engine=EngineOverrides(unified=True), auto=Automatic(n_gpu_layers=True))
    assert changed_extras(kept, given_parameters({"top_k": 3}, None)) == kept


@pytest.mark.parametrize("text", ["Auto", "8k", "", "1.5"])
def test_what_is_neither_a_number_nor_auto_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        given_parameters({"context_size": text}, None)
    assert refused.value.param_hint == "--context-size"
    assert f"{text!r} is neither a whole number nor auto" in refused.value.message


def test_only_these_two_can_be_automatic() -> None:
    with pytest.raises(typer.BadParameter):
        given_parameters({"n_batch": "auto"}, None)


def test_limits_are_mib() -> None:
    config = config_of(
        *("agent", "--management-addr", "127.0.0.1:1", "--slots", "1"),
        *("--memory-limit", "1", "--gpu-memory-reserve", "3"),
    )
    assert isinstance(config, AgentConfig)
    limits = config.memory
    assert (limits.host_limit_bytes, limits.gpu_reserve_bytes) == (MIB, 3 * MIB)
    assert limits.host_reserve_bytes is None


def view(memory: object) -> AgentView:
    return AgentView(
        id="1",
        name="a1",
        protocol="paddler-trio.1",
        is_accepting=True,
        slots_processing=0,
        slots_total=1,
        desired_slots_total=1,
        model_path=None,
        state_application_status="Applied",
        issues=[],
        memory=memory,  # type: ignore[arg-type]  # what another version may send
    )


def test_memory_is_shown_as_it_is_and_as_it_was_predicted() -> None:
    memory = {
        "context_size": 57344,
        "n_gpu_layers": 33,
        "chosen": ["context_size", "n_gpu_layers"],
        "devices": [
            {"device": "host", "predicted": 100 * MIB, "actual": 120 * MIB},
            {"device": "GPU0", "predicted": None, "actual": 2048 * MIB},
            {"device": "GPU1", "predicted": 0, "actual": None},
        ],
    }
    assert chosen_words(view(memory)) == "context-size 57344, n-gpu-layers 33"
    assert memory_words(view(memory)) == "host 120 MiB (predicted 100 MiB), GPU0 2.00 GiB"
    for nothing in (None, {}, {"chosen": 3, "devices": "many"}, {"devices": [7]}):
        assert chosen_words(view(nothing)) == memory_words(view(nothing)) == ""


REPORT = {
    "fits": False,
    "problem": "needs 2.00 GiB on GPU0, 1.00 GiB are available; context-size 8192 fits",
    "context_size": 16384,
    "slots": 4,
    "n_gpu_layers": -1,
    "n_layers": 33,
    "k_cache_dtype": "F16",
    "v_cache_dtype": "F16",
    "chosen": ["context_size"],
    "devices": [
        {"device": "host", "weights": MIB, "needed": 2 * MIB, "projection": 0, "limit": None},
        {"device": "GPU0", "weights": 1024 * MIB, "needed": 2048 * MIB, "available": 1024 * MIB},
    ],
}


def test_a_verdict_is_a_table_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_answers(
        [
            FitAnswer.of("a\x1b1", REPORT),
            FitAnswer("p", None, "a Paddler agent judges no models", is_paddlers=True),
        ]
    )
    head, host, gpu, verdict, paddlers = capsys.readouterr().out.splitlines()
    assert "projection" not in head
    assert "limit" not in head
    assert host.split()[:2] == ["host", "1.00"]
    assert "1.00 GiB" in gpu
    assert verdict == (
        "a\N{REPLACEMENT CHARACTER}1: does not fit: context-size 16384 (auto), 4 slots, F16/F16 "
        "KV, n-gpu-layers 33 of 33: needs 2.00 GiB on GPU0, 1.00 GiB are available; context-size "
        "8192 fits"
    )
    assert paddlers == "p: cannot be said: a Paddler agent judges no models"


@pytest.mark.parametrize(
    ("fits", "is_one", "code"),
    [
        ([True, True], False, 0),
        ([True, False, None], False, 1),
        ([True, None], False, 2),
        ([], False, 2),
        (["paddler", True], False, 0),
        (["paddler", False], False, 1),
        (["paddler"], False, 2),
        (["paddler"], True, 2),
    ],
)
def test_the_exit_code_is_the_verdict(fits: list[object], is_one: bool, code: int) -> None:
    answers = [
        FitAnswer("a", None, None, is_paddlers=True)
        if each == "paddler"
        else FitAnswer("a", each, None)  # type: ignore[arg-type]
        for each in fits
    ]
    assert _exit_code(answers, is_one=is_one) == code
