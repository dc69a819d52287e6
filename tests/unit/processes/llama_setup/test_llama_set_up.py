"""What is built, kept and remembered in which environment, without building anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llama_machines import AVX2_FLAGS, AVX512_FLAGS, recipes_for

from paddler_trio.processes.engine.proof import Proof
from paddler_trio.processes.llama_setup import set_up
from paddler_trio.processes.llama_setup.environment import (
    Environment,
    Marker,
    SetupError,
    digest,
    is_proven,
)
from paddler_trio.processes.llama_setup.recipes import (
    FOUND,
    Accelerator,
    Recipe,
    choose_recipes,
    portable_recipes,
)
from paddler_trio.processes.llama_setup.set_up import SetupRequest, reason_against
from paddler_trio.processes.llama_setup.wheel_build import (
    Pip,
    build_started,
    describe_progress,
    wheel_folder,
)

PROGRAM = Path(__file__).resolve().parents[4] / "tools" / "setup_llama.py"
USED = "CPU : AVX2 = 1 | F16C = 1 | FMA = 1"


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
        phrases.append(describe_progress(log))
    assert phrases == [
        "downloading the source (77 MB)",
        "fetching the build tools",
        "configuring",
        "[1/136] compiling",
        "[57/136] compiling",
        "packing the wheel",
    ]
    assert describe_progress("[ 42%] Building CXX object\n") == "[ 42%] compiling"


def test_a_build_that_never_compiled_is_told_from_one_the_compiler_refused() -> None:
    assert not build_started("ERROR: Could not find a version that satisfies\n")
    assert build_started("  [1/136] c++ -c a.cpp\nFAILED: a.o\n")


OURS = Recipe("avx2", ("-DA=ON",))
THERE: dict[str, Any] = {
    "requested": None,
    "accelerator": None,
    "cpu": "cpu",
    "libraries": "libraries",
    "recipes": [OURS],
}


def marker_of(
    recipe: Recipe, requested: str | None = None, accelerator: Accelerator = "cpu"
) -> Marker:
    return Marker(recipe.name, requested, "cpu", "libraries", USED, recipe.cmake_args, accelerator)


def test_a_proof_is_void_once_the_cpu_or_the_libraries_differ() -> None:
    marker = marker_of(OURS)
    assert is_proven(marker, **THERE)
    assert not is_proven(None, **THERE)
    for change in ({"cpu": "other"}, {"libraries": "other"}, {"libraries": None}):
        assert not is_proven(marker, **(THERE | change))
    assert not is_proven(marker, **(THERE | {"requested": "-DGGML_CUDA=on"}))


def test_a_build_of_the_users_own_stays_until_another_one_is_asked_for() -> None:
    recipe = Recipe("your CMAKE_ARGS", ("-DGGML_CUDA=on",), lean=False)
    marker = marker_of(recipe, requested="-DGGML_CUDA=on")
    assert is_proven(marker, **THERE)
    assert is_proven(marker, **(THERE | {"requested": "-DGGML_CUDA=on"}))
    assert not is_proven(marker, **(THERE | {"requested": "-DGGML_VULKAN=on"}))


def test_a_build_of_our_choice_stays_only_as_long_as_we_would_choose_it() -> None:
    older = Recipe("avx2", ())
    assert not is_proven(marker_of(older), **THERE)
    humbler = Recipe("baseline", ("-DA=OFF",))
    ladder = {"recipes": [OURS, humbler]}
    assert is_proven(marker_of(humbler), **(THERE | ladder))
    assert is_proven(marker_of(FOUND), **THERE)


def test_a_build_for_a_gpu_stays_until_another_one_is_asked_for() -> None:
    marker = marker_of(OURS, accelerator="cuda")
    assert is_proven(marker, **THERE)
    assert is_proven(marker, **(THERE | {"accelerator": "cuda"}))
    assert not is_proven(marker, **(THERE | {"accelerator": "cpu"}))
    assert not is_proven(marker, **(THERE | {"accelerator": "vulkan"}))
    theirs = marker_of(FOUND)
    assert is_proven(theirs, **THERE)
    assert not is_proven(theirs, **(THERE | {"accelerator": "cpu"}))


def test_a_build_found_installed_is_kept_if_it_is_as_good_as_ours() -> None:
    flags = frozenset(AVX512_FLAGS)
    full = Proof(True, system_info=USED + " | AVX512 = 1", devices=["CPU (x)"])
    poor = Proof(True, system_info=USED, devices=["CPU (x)"])
    assert reason_against(full, flags) is None
    assert reason_against(poor, frozenset(AVX2_FLAGS)) is None
    assert "AVX512" in (reason_against(poor, flags) or "")
    on_a_gpu = Proof(True, system_info=USED, devices=["CUDA0 (a GPU)", "CPU (x)"])
    assert reason_against(on_a_gpu, flags) is None
    with_amx = Proof(True, system_info=full.system_info + " | AMX_INT8 = 1", devices=["CPU (x)"])
    assert "AMX" in (reason_against(with_amx, flags) or "")
    assert reason_against(Proof(False, error="killed by SIGILL"), flags) == "killed by SIGILL"


class Checkout:
    """An environment that was set up before, with everything that takes minutes left out."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, libraries: str | None = "libraries"
    ) -> None:
        self.marker = folder / "llama-proof.json"
        self.provided: list[str] = []
        self.system_info = USED
        self.proofs = 0
        self.gpus: tuple[str, ...] = ()
        monkeypatch.delenv("CMAKE_ARGS", raising=False)
        monkeypatch.setattr(Environment, "here", staticmethod(lambda: Environment(folder)))
        monkeypatch.setattr(Environment, "fingerprint_libraries", lambda _: libraries)
        monkeypatch.setattr(set_up, "read_cpu_flags", lambda: frozenset(AVX2_FLAGS))
        monkeypatch.setattr(set_up, "prove_in_child", self.prove)
        monkeypatch.setattr(set_up, "cuda_architectures", lambda: self.gpus)
        monkeypatch.setattr(
            set_up, "provide", lambda recipes, **_: self.provided.append(recipes[0].name)
        )

    def prove(self, _: Path) -> Proof:
        self.proofs += 1
        return Proof(True, 8, system_info=self.system_info)

    def remembers(self, **facts: object) -> None:
        cpu = digest(AVX2_FLAGS)
        base = {"requested": None, "cpu": cpu, "libraries": "libraries", "system_info": USED}
        self.marker.write_text(json.dumps(base | facts))

    def set_up(self, accelerator: Accelerator | None = None) -> dict[str, Any]:
        """What is remembered afterwards."""
        set_up.run(SetupRequest("make setup", accelerator))
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
    assert remembered["cpu"] == digest(AVX2_FLAGS)
    assert facts.items() <= remembered.items()


def test_asking_for_an_accelerator_replaces_what_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    checkout.remembers(recipe="found installed")
    checkout.set_up()
    assert checkout.provided == []
    checkout.set_up("cpu")
    assert checkout.provided == ["avx2"]
    checkout.set_up("cuda")
    assert checkout.provided == ["avx2", "avx2 with cuda"]
    cuda = choose_recipes(AVX2_FLAGS, machine="x86_64", accelerator="cuda")[0]
    checkout.remembers(recipe=cuda.name, cmake_args=cuda.cmake_args, accelerator="cuda")
    checkout.set_up("cuda")
    checkout.set_up()
    assert len(checkout.provided) == 2


def test_a_build_for_another_gpu_is_proven_anew_and_built_anew_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    checkout.gpus = ("90",)
    cuda = choose_recipes(AVX2_FLAGS, machine="x86_64", accelerator="cuda")[0]
    facts = {"recipe": cuda.name, "cmake_args": cuda.cmake_args, "accelerator": "cuda"}
    checkout.remembers(**facts, cpu=digest(AVX2_FLAGS | {"90"}))
    checkout.set_up("cuda")
    checkout.set_up()
    assert (checkout.proofs, checkout.provided) == (0, [])
    checkout.gpus = ("120",)
    assert checkout.set_up()["cpu"] == digest(AVX2_FLAGS | {"120"})
    assert (checkout.proofs, checkout.provided) == (1, [])
    checkout.gpus = ("90",)
    checkout.set_up("cuda")
    assert checkout.provided == ["avx2 with cuda"]


def test_a_poor_build_that_pip_made_is_replaced_even_if_it_was_once_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    checkout.system_info = "CPU : SSE3 = 1"
    checkout.remembers(recipe="found installed", system_info=checkout.system_info)
    checkout.set_up()
    assert checkout.provided == ["avx2"]
    assert "does not use AVX2, FMA, F16C" in capsys.readouterr().out


def test_a_portable_build_is_made_when_asked_for_and_replaced_where_it_is_poor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = Checkout(tmp_path, monkeypatch)
    set_up.run(SetupRequest("paddler-trio setup --portable", portable=True))
    assert checkout.provided == ["portable avx2"]
    [portable, _] = portable_recipes("x86_64")
    checkout.remembers(recipe=portable.name, cmake_args=portable.cmake_args)
    checkout.set_up()  # it has all that this CPU has
    assert checkout.provided == ["portable avx2"]
    checkout.remembers(
        recipe=portable.name, cmake_args=portable.cmake_args, system_info="CPU : SSE3 = 1"
    )
    checkout.system_info = "CPU : SSE3 = 1"
    checkout.set_up()
    assert checkout.provided == ["portable avx2", "avx2"]


def test_cmake_args_beside_an_option_are_refused_with_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkout(tmp_path, monkeypatch)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    with pytest.raises(SetupError, match=r"CMAKE_ARGS=-DGGML_CUDA=on .* --cuda"):
        set_up.run(SetupRequest("paddler-trio setup", "cuda"))


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert wheel_folder("key") == Path("/somewhere/paddler-trio/wheels/key")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert wheel_folder("key") == Path("~/.cache").expanduser() / ("paddler-trio/wheels/key")


class Workshop:
    """Stands in for minutes of compiling: which recipes are refused, and which run here."""

    def __init__(self, folder: Path, *, refused: set[str], running: set[str]) -> None:
        self.folder, self.refused, self.running = folder, refused, running
        self.built: list[str] = []

    def build_wheel(self, recipe: Recipe, folder: Path, **_: object) -> Path | None:
        self.built.append(recipe.name)
        if recipe.name in self.refused:
            return None
        wheel = folder / "llama.whl"
        wheel.write_text(recipe.name)
        return wheel

    def try_wheel(self, wheel: Path, **_: object) -> Proof:
        return Proof(ok=wheel.read_text() in self.running, error="killed by SIGILL")

    def provide(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """The recipe that ends up remembered."""
        remembered: list[str] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder))
        monkeypatch.setattr(set_up, "build_wheel", self.build_wheel)
        monkeypatch.setattr(set_up, "try_wheel", self.try_wheel)
        monkeypatch.setattr(set_up, "find_compiler", lambda: "c++ 1.0")
        monkeypatch.setattr(
            set_up, "remember", lambda recipe, *_, **__: remembered.append(recipe.name)
        )
        flags = frozenset(AVX512_FLAGS)
        self.folder.mkdir(exist_ok=True)
        set_up.provide(
            choose_recipes(flags, machine="x86_64"),
            environment=Environment(self.folder),
            requested=None,
            accelerator="cpu",
            flags=flags,
            architectures=(),
            command="make setup",
        )
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
    with pytest.raises(SetupError, match="avx512, avx2, baseline") as caught:
        hopeless.provide(monkeypatch)
    assert "CMAKE_ARGS" in str(caught.value)
    assert list(tmp_path.rglob("*.whl")) == []


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


class RecordingPip(Pip):
    """Leaves the folder behind that pip would fill."""

    def run(self, *arguments: str) -> None:
        folder = Path(arguments[arguments.index("--target") + 1])
        (folder / "llama_cpp").mkdir(parents=True)
        (folder / "llama_cpp" / "from").write_text(arguments[-1])


def test_where_packages_belong_to_the_system_a_build_goes_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, told = tmp_path / "venv", tmp_path / "llama"
    prefix.mkdir()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    assert Environment.here() == Environment(prefix)
    (prefix / "llama-folder").write_text("llama\n")
    with pytest.raises(SetupError, match="not an absolute path"):
        Environment.here()
    (prefix / "llama-folder").write_text(f"{told}\n")
    environment = Environment.here()
    assert environment.own_folder is not None
    assert environment.own_folder.parent == told == environment.marker.parent
    environment.prepare()
    for wheel in (Path("one.whl"), Path("two.whl")):
        RecordingPip(("pip",)).install_wheel(wheel, environment)
        assert (environment.own_folder / "llama_cpp" / "from").read_text() == str(wheel)
        assert list(told.iterdir()) == [environment.own_folder]


def test_the_systems_own_python_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(SetupError, match="virtual environment"):
        Environment.here()
