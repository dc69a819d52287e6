"""How a build of llama.cpp is chosen, named and remembered, without building one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddler_trio.engine.proof import Proof

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "tools" / "setup_llama.py"

_spec = importlib.util.spec_from_file_location("setup_llama", PROGRAM)
assert _spec is not None
assert _spec.loader is not None
setup_llama = importlib.util.module_from_spec(_spec)
sys.modules["setup_llama"] = setup_llama
_spec.loader.exec_module(setup_llama)

AVX2_FLAGS = {"sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"}
AVX512_FLAGS = AVX2_FLAGS | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
KNOWN_FLAGS = sorted(
    AVX512_FLAGS
    | {"avx512vbmi", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "avx_vnni"}
)


def recipes_for(flags: set[str]) -> dict[str, tuple[str, ...]]:
    chosen = setup_llama.choose_recipes(flags, machine="x86_64", requested=None)
    return {recipe.name: recipe.cmake_args for recipe in chosen}


def test_a_cpu_with_everything_is_tried_from_the_widest_to_the_baseline() -> None:
    ladder = recipes_for(set(KNOWN_FLAGS))
    assert list(ladder) == ["avx512", "avx2", "baseline"]
    assert "-DGGML_AVX512_VNNI=ON" in ladder["avx512"]
    assert "-DGGML_AVX512=OFF" in ladder["avx2"]
    assert "-DGGML_AVX2=ON" in ladder["avx2"]
    on = [argument for argument in ladder["baseline"] if argument.endswith("=ON")]
    assert on == ["-DGGML_RPC=ON"]


def test_a_cpu_without_avx512_starts_one_step_lower() -> None:
    assert list(recipes_for(AVX2_FLAGS)) == ["avx2", "baseline"]


def test_a_cpu_with_half_of_avx512_gets_none_of_it() -> None:
    ladder = recipes_for(AVX2_FLAGS | {"avx512f", "avx512_vnni"})
    assert list(ladder) == ["avx2", "baseline"]
    assert "-DGGML_AVX512_VNNI=OFF" in ladder["avx2"]


def test_the_plainest_cpu_has_one_recipe() -> None:
    assert list(recipes_for({"fpu", "sse2"})) == ["baseline"]


@given(flags=st.sets(st.sampled_from(KNOWN_FLAGS)))
def test_no_recipe_asks_for_what_the_cpu_lacks_or_for_what_is_known_to_fault(
    flags: set[str],
) -> None:
    needs = setup_llama.BASIC | setup_llama.WIDE
    ladder = recipes_for(flags | {"fpu"})
    assert len(set(ladder.values())) == len(ladder)
    for arguments in ladder.values():
        assert arguments[0] == "-DGGML_NATIVE=OFF"
        assert arguments[-1] == "-DGGML_RPC=ON"
        for argument in arguments[:-1]:
            assert "AMX" not in argument
            assert "BF16" not in argument
            option, _, switch = argument.removeprefix("-D").partition("=")
            assert switch == "OFF" or needs[option] <= flags


def test_arm_and_machines_without_a_list_of_flags_leave_the_choice_to_ggml() -> None:
    for machine, flags in (("aarch64", {"asimd"}), ("arm64", set()), ("x86_64", set())):
        chosen = setup_llama.choose_recipes(flags, machine=machine, requested=None)
        assert [recipe.name for recipe in chosen] == ["native", "baseline"]
        assert chosen[0].cmake_args == ("-DGGML_RPC=ON",)
        assert chosen[1].cmake_args == ("-DGGML_NATIVE=OFF", "-DGGML_RPC=ON")


def test_what_the_user_asks_for_is_all_that_is_tried() -> None:
    [recipe] = setup_llama.choose_recipes(
        AVX512_FLAGS, machine="x86_64", requested="-DGGML_CUDA=on -DCMAKE_CXX_FLAGS='-O2 -g'"
    )
    assert recipe.cmake_args == ("-DGGML_CUDA=on", "-DCMAKE_CXX_FLAGS=-O2 -g")
    assert not recipe.lean


def test_every_fact_of_a_build_changes_the_name_of_its_wheel() -> None:
    lean = setup_llama.Recipe("native", ("-DA=ON",))
    facts = {"flags": ["avx"], "compiler": "gcc 12", "abi": "cpython-311", "system": "linux"}
    others = [facts | {name: ["other"] if name == "flags" else "other"} for name in facts]
    keys = [setup_llama.wheel_key(lean, **one) for one in [facts, *others]]
    keys.append(setup_llama.wheel_key(setup_llama.Recipe("x", ("-DA=OFF",)), **facts))
    keys.append(setup_llama.wheel_key(setup_llama.Recipe("x", ("-DA=ON",), lean=False), **facts))
    assert len(set(keys)) == len(keys)
    renamed = setup_llama.Recipe("another word for it", ("-DA=ON",))
    assert setup_llama.wheel_key(renamed, **facts) == keys[0]


@pytest.mark.parametrize(
    ("cores", "memory_gib", "jobs"),
    [(2, 24, 2), (0.5, 8, 1), (64, 4, 4), (8, 0.5, 1), (3, None, 3)],
)
def test_compilers_are_as_many_as_cores_and_memory_allow(
    cores: float, memory_gib: float | None, jobs: int
) -> None:
    memory_bytes = None if memory_gib is None else int(memory_gib * 2**30)
    assert setup_llama.count_jobs(cores, memory_bytes) == jobs


def test_the_heartbeat_says_where_the_build_is() -> None:
    log = ""
    phrases = []
    for more in (
        "Collecting llama-cpp-python\n",
        "  Installing build dependencies: started\n",
        "  Building wheel for llama-cpp-python (pyproject.toml): started\n",
        "  [1/136] /usr/bin/c++ -c a.cpp\n  warning: [99/100] is not a step\n",
        "  [57/136] /usr/bin/c++ -c b.cpp\n",
        "Successfully built llama-cpp-python\n",
    ):
        log += more
        phrases.append(setup_llama.describe_progress(log))
    assert phrases == [
        "downloading the source (77 MB)",
        "fetching the build tools",
        "configuring",
        "[1/136] compiling",
        "[57/136] compiling",
        "packing the wheel",
    ]
    assert setup_llama.describe_progress("[ 42%] Building CXX object\n") == "[ 42%] compiling"


def test_a_build_that_never_compiled_is_told_from_one_the_compiler_refused() -> None:
    assert not setup_llama.build_started("ERROR: Could not find a version that satisfies\n")
    assert setup_llama.build_started("  [1/136] c++ -c a.cpp\nFAILED: a.o\n")


OURS = setup_llama.Recipe("avx2", ("-DA=ON",))
THERE = {"requested": None, "cpu": "cpu", "libraries": "libraries", "recipes": [OURS]}


def marker_of(recipe: Any, requested: str | None = None) -> Any:
    return setup_llama.Marker(
        recipe.name, requested, "cpu", "libraries", "CPU : AVX2 = 1", recipe.cmake_args
    )


def test_a_proof_is_void_once_the_cpu_or_the_libraries_differ() -> None:
    marker = marker_of(OURS)
    assert setup_llama.is_proven(marker, **THERE)
    assert not setup_llama.is_proven(None, **THERE)
    for change in ({"cpu": "other"}, {"libraries": "other"}, {"libraries": None}):
        assert not setup_llama.is_proven(marker, **(THERE | change))
    assert not setup_llama.is_proven(marker, **(THERE | {"requested": "-DGGML_CUDA=on"}))


def test_a_build_of_the_users_own_stays_until_another_one_is_asked_for() -> None:
    recipe = setup_llama.Recipe("your CMAKE_ARGS", ("-DGGML_CUDA=on",), lean=False)
    marker = marker_of(recipe, requested="-DGGML_CUDA=on")
    assert setup_llama.is_proven(marker, **THERE)
    assert setup_llama.is_proven(marker, **(THERE | {"requested": "-DGGML_CUDA=on"}))
    assert not setup_llama.is_proven(marker, **(THERE | {"requested": "-DGGML_VULKAN=on"}))


def test_a_build_of_our_choice_stays_only_as_long_as_we_would_choose_it() -> None:
    older = setup_llama.Recipe("avx2", ())
    assert not setup_llama.is_proven(marker_of(older), **THERE)
    humbler = setup_llama.Recipe("baseline", ("-DA=OFF",))
    ladder = {"recipes": [OURS, humbler]}
    assert setup_llama.is_proven(marker_of(humbler), **(THERE | ladder))
    assert setup_llama.is_proven(marker_of(setup_llama.FOUND), **THERE)


class Checkout:
    """An environment that was set up before, with everything that takes minutes left out."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, libraries: str | None = "libraries"
    ) -> None:
        self.marker = folder / "llama-proof.json"
        self.provided: list[str] = []
        monkeypatch.delenv("CMAKE_ARGS", raising=False)
        monkeypatch.setattr(sys, "base_prefix", "/usr")  # as in any virtual environment
        monkeypatch.setattr(setup_llama, "MARKER", self.marker)
        monkeypatch.setattr(setup_llama, "read_cpu_flags", lambda: frozenset(AVX2_FLAGS))
        monkeypatch.setattr(setup_llama, "fingerprint_libraries", lambda: libraries)
        monkeypatch.setattr(
            setup_llama, "prove_in_child", lambda _: Proof(True, 8, system_info="CPU : AVX2 = 1")
        )
        monkeypatch.setattr(
            setup_llama, "provide", lambda recipes, **_: self.provided.append(recipes[0].name)
        )

    def remembers(self, **facts: object) -> None:
        cpu = setup_llama.digest(AVX2_FLAGS)
        base = {"requested": None, "cpu": cpu, "libraries": "libraries", "system_info": ""}
        self.marker.write_text(json.dumps(base | facts))

    def set_up(self) -> dict[str, Any]:
        """What is remembered afterwards."""
        setup_llama.run([])
        facts: dict[str, Any] = json.loads(self.marker.read_text())
        return facts


def todays(name: str) -> list[str]:
    return list(recipes_for(AVX2_FLAGS)[name])


def test_a_checkout_from_before_a_recipe_changed_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    checkout.remembers(recipe="avx2")  # as it was written before arguments were remembered
    checkout.set_up()
    assert checkout.provided == ["avx2"]
    checkout.remembers(recipe="avx2", cmake_args=todays("avx2")[:-1])
    checkout.set_up()
    assert checkout.provided == ["avx2", "avx2"]


@pytest.mark.parametrize(
    "facts",
    [
        {"recipe": "avx2", "cmake_args": todays("avx2")},
        {"recipe": "baseline", "cmake_args": todays("baseline")},
        {"recipe": "your CMAKE_ARGS", "requested": "-DGGML_CUDA=on"},
        {"recipe": "found installed"},
    ],
)
def test_other_checkouts_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    checkout.remembers(**facts)
    before = checkout.marker.read_text()
    checkout.set_up()
    assert checkout.provided == []
    assert checkout.marker.read_text() == before


@pytest.mark.parametrize("spoilt", [None, "[]", "{", '{"recipe": "avx2"}', '{"cmake_args": 1}'])
def test_a_build_that_nothing_is_remembered_of_is_proven_and_not_ours_to_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str | None
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    if spoilt is not None:
        checkout.marker.write_text(spoilt)
    assert checkout.set_up()["recipe"] == "found installed"
    assert checkout.provided == []


@pytest.mark.parametrize(
    "facts",
    [
        {"recipe": "baseline", "cmake_args": todays("baseline")},
        {"recipe": "your CMAKE_ARGS", "requested": "-DA=on", "cmake_args": ["-DA=on"]},
    ],
)
def test_on_another_cpu_a_known_build_is_proven_again_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    checkout.remembers(cpu="another", **facts)
    remembered = checkout.set_up()
    assert checkout.provided == []
    assert remembered["cpu"] == setup_llama.digest(AVX2_FLAGS)
    assert facts.items() <= remembered.items()


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert setup_llama.wheel_folder("key") == Path("/somewhere/paddler-trio/wheels/key")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert setup_llama.wheel_folder("key") == Path("~/.cache").expanduser() / (
        "paddler-trio/wheels/key"
    )


class Workshop:
    """Stands in for minutes of compiling: which recipes are refused, and which run here."""

    def __init__(self, folder: Path, *, refused: set[str], running: set[str]) -> None:
        self.folder, self.refused, self.running = folder, refused, running
        self.built: list[str] = []

    def build_wheel(self, recipe: Any, folder: Path) -> Path | None:
        self.built.append(recipe.name)
        if recipe.name in self.refused:
            return None
        wheel = folder / "llama.whl"
        wheel.write_text(recipe.name)
        return wheel

    def try_wheel(self, wheel: Path) -> Proof:
        return Proof(ok=wheel.read_text() in self.running, error="killed by SIGILL")

    def provide(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """The recipe that ends up remembered."""
        remembered: list[str] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder))
        monkeypatch.setattr(setup_llama, "build_wheel", self.build_wheel)
        monkeypatch.setattr(setup_llama, "try_wheel", self.try_wheel)
        monkeypatch.setattr(setup_llama, "find_compiler", lambda: "c++ 1.0")
        monkeypatch.setattr(
            setup_llama, "remember", lambda recipe, *_, **__: remembered.append(recipe.name)
        )
        flags = frozenset(AVX512_FLAGS)
        ladder = setup_llama.choose_recipes(flags, machine="x86_64", requested=None)
        setup_llama.provide(ladder, requested=None, flags=flags)
        [name] = remembered
        return name


def test_a_build_that_does_not_run_or_compile_is_followed_by_a_humbler_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulting = Workshop(tmp_path / "a", refused=set(), running={"avx2", "baseline"})
    assert faulting.provide(monkeypatch) == "avx2"
    refusing = Workshop(tmp_path / "b", refused={"avx512", "avx2"}, running={"baseline"})
    assert refusing.provide(monkeypatch) == "baseline"
    assert refusing.built == ["avx512", "avx2", "baseline"]


def test_the_next_checkout_uses_the_wheel_that_was_proven_and_rebuilds_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Workshop(tmp_path, refused=set(), running={"avx512"})
    assert first.provide(monkeypatch) == "avx512"
    second = Workshop(tmp_path, refused=set(), running={"avx512"})
    assert second.provide(monkeypatch) == "avx512"
    assert second.built == []
    [kept] = tmp_path.rglob("*.whl")
    kept.write_text("spoilt")
    third = Workshop(tmp_path, refused=set(), running={"avx512"})
    assert third.provide(monkeypatch) == "avx512"
    assert third.built == ["avx512"]
    assert kept.read_text() == "avx512"


def test_when_nothing_runs_the_error_says_what_was_tried_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopeless = Workshop(tmp_path, refused=set(), running=set())
    with pytest.raises(setup_llama.SetupError, match="avx512, avx2, baseline") as caught:
        hopeless.provide(monkeypatch)
    assert "CMAKE_ARGS" in str(caught.value)
    assert list(tmp_path.rglob("*.whl")) == []


def test_the_pin_is_the_one_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"llama-cpp-python=={setup_llama.VERSION}" in project["dependencies"]


def test_it_starts_where_nothing_is_installed() -> None:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(PROGRAM), "--plan"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert "baseline" in ended.stdout or "CMAKE_ARGS" in ended.stdout
