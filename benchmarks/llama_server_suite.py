"""Run llama-server's own suite of tests against llama-server and against a fleet, and compare.

    python benchmarks/build_llama_server.py ../llama-peer
    python benchmarks/llama_server_suite.py ../llama-peer [-- -k stream]

The suite is in the source that the first command fetches (``tools/server/tests``, MIT); nothing of
it is here. It is run with an environment of its own below that folder, first with llama-server,
then with ``tests/integration/llama_server_shim.py`` in its place. Both serve the same small models
instead of those that the suite would download: the bundled one, with and without tokens for gaps
and a projector, and encoders of random weights. A test that passes there and fails here has to have
a row in ``DIFFERENCES``, and a row whose test passes has to go: status 1 is for either.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIM = ROOT / "tests" / "integration" / "llama_server_shim.py"
BUNDLED = ROOT / "src" / "paddler_trio" / "models" / "paddler-demo.gguf"
NEEDS = [
    "aiohttp",
    "filelock",
    "numpy",
    "openai",
    "prometheus-client",
    "pytest",
    "pytest-xdist",
    "requests",
    "wget",
]
"""The packages of its requirements; of ours it gets none."""
SUITE_S = 5400
SERVER = "LLAMA_SUITE_SERVER"
"""The variable that says which of both a test starts."""
PLACEHOLDERS = {
    "ggml-org/test-model-stories260K": "demo.gguf",
    "ggml-org/models/tinyllamas/stories260K.gguf": "demo.gguf",
    "ggml-org/models/bert-bge-small/ggml-model-f16.gguf": "encoder.gguf",
    "ggml-org/models/jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "ranker.gguf",
    "ggml-org/test-model-stories260K-infill": "gaps.gguf",
    "ggml-org/stories15M_MOE/stories15M_MOE-F16.gguf": "demo.gguf",
    "ggml-org/tinygemma3-GGUF:Q8_0": "demo.gguf",
}
"""The model here for each that the suite names by repository and file."""
SEES = "ggml-org/tinygemma3-GGUF:Q8_0"
_REASONS = "the bundled model reasons first, for as long as these tests let it answer"
_VERBOSE = "what the model was given is told to who asks with `verbose`, by no flag"
_BLIND = "an image for a model that sees none is the client's mistake, 400 and not 500"
_SEED = "a fleet has no seed for requests that have none: two of them differ"
ELSEWHERE: Mapping[str, str] = {
    "test_compat_gcp.py": "a fleet is told its addresses by flags, not by a platform's variables",
    "test_ctx_shift.py": "contexts are not shifted: what does not fit is refused",
    "test_kv_keep_only_active.py": "which prefixes stay is the engine's own choice",
    "test_lora.py": "adapters are not chosen by a request",
    "test_mcp_servers.py": "a balancer runs no tools",
    "test_metrics.py": "metrics are on the management port, as Prometheus' text of a fleet",
    "test_proxy.py": "a balancer forwards to no MCP servers",
    "test_router.py": "models are deployments; what is loaded is decided by the fleet's state",
    "test_security.py": "keys are in a file, with scopes, and pages are named by the operator",
    "test_sleep.py": "`idle_ttl` of a deployment unloads it",
    "test_slot_save.py": "slots are the agents', and a prefix needs no file",
    "test_speculative.py": "drafts are the agents', with `--draft-model`",
    "test_tools_builtin.py": "a balancer runs no tools",
}
"""Files of the suite that are about what a fleet does in another place, or not: no test of them is
run here."""
DIFFERENCES: Mapping[str, str] = {
    "test_basic.py::test_server_multiple_addresses": "keys are in a file of the balancer",
    "test_basic.py::test_server_props": _SEED,
    "test_basic.py::test_server_slots": "`/slots` is always there",
    "test_basic.py::test_server_model_aliases_and_tags": "the names of its file are names, too",
    "test_chat_completion.py::test_completion_with_json_schema": _REASONS,
    "test_chat_completion.py::test_completion_with_grammar": _REASONS,
    "test_chat_completion.py::test_completion_with_response_format": _REASONS,
    "test_chat_completion.py::test_chat_template_assistant_prefill": _VERBOSE,
    "test_chat_completion.py::test_chat_template_continue_final_message_vllm_compat": _VERBOSE,
    "test_chat_completion.py::test_apply_chat_template": "templates have no names, only texts",
    "test_template.py::test_reasoning": "whether to reason is said by requests and templates",
    "test_compat_anthropic.py::test_anthropic_empty_messages": "400, as Anthropic's own API says",
    "test_compat_anthropic.py::test_anthropic_tool_result_with_image": _BLIND,
    "test_compat_anthropic.py::test_anthropic_vision_format_accepted": _BLIND,
    "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry": _REASONS,
    "test_completion.py::test_completion_stream_vs_non_stream": _SEED,
    "test_completion.py::test_completion_unified": "each slot has cells of its own by default",
}
"""Tests that pass with llama-server and not with a fleet, by name without parameters, or with."""


def write_models(folder: Path) -> None:
    """Make those that are missing."""
    from encoder_models import write_bert
    from infill_models import write_infill_model
    from vision_models import write_projector

    folder.mkdir(exist_ok=True)
    makers = {
        "demo.gguf": lambda path: path.write_bytes(BUNDLED.read_bytes()),
        "gaps.gguf": write_infill_model,
        "encoder.gguf": write_bert,
        "ranker.gguf": lambda path: write_bert(path, classes=1),
        "projector.gguf": lambda path: write_projector(path, kind="gemma3"),
    }
    for name, make in makers.items():
        if not (folder / name).exists():
            made = folder / f"{name}.part"
            make(made)
            made.rename(folder / name)


def serve(folder: Path, arguments: Sequence[str]) -> None:
    """Become the server that this run is about, with a model that is here."""
    left, repository, file = list[str](), "", ""
    rest = iter(arguments)
    for argument in rest:
        match argument:
            case "--hf-repo":
                repository = next(rest)
            case "--hf-file":
                file = next(rest)
            case "--model-url" | "--mmproj-url" | "--model-draft" | "--lora":
                sys.exit(f"{argument} {next(rest)}: nothing is downloaded")
            case _:
                left.append(argument)
    if repository:
        asked = f"{repository}/{file}" if file else repository
        if asked not in PLACEHOLDERS:
            sys.exit(f"there is no model in the place of {asked}")
        left += ["--model", str(folder / "models" / PLACEHOLDERS[asked])]
        if asked == SEES and "--no-mmproj" not in left:
            left += ["--mmproj", str(folder / "models" / "projector.gguf")]
    if "--threads" not in left:
        left += ["--threads", "1"]  # more spin while they wait for each other
    command = [os.environ[SERVER], *left]
    if os.environ[SERVER] == str(SHIM):
        command.insert(0, sys.executable)
    os.execv(command[0], command)


def run(
    folder: Path,
    server: Path,
    suite: Path,
    options: Sequence[str],
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the outcome of each test with this server, which is told ``more`` in variables."""
    python = folder / "suite-venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *NEEDS], check=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        starter = Path(name, "llama-server")
        starter.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} --serve {folder} "$@"\n')
        starter.chmod(0o755)
        report = Path(name, "report.xml")
        nowhere = "http://127.0.0.1:9"  # whoever would download something is refused at once
        environment = {
            **os.environ,
            "LLAMA_SERVER_BIN_PATH": str(starter),
            SERVER: str(server),
            **(more or {}),
            "HTTPS_PROXY": nowhere,
            "https_proxy": nowhere,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        command += [f"--junit-xml={report}", "--tb=short", *options]
        with (folder / f"suite-{server.stem}.log").open("w") as log:
            subprocess.run(
                command, cwd=suite, env=environment, stdout=log, stderr=log, timeout=SUITE_S
            )
        return outcomes(report)


def run_here(
    folder: Path, suite: Path, options: Sequence[str], passing: Sequence[str]
) -> dict[str, str]:
    """Return the outcome of each test with a fleet: one for all, and where that has seen too much
    for a test that passes elsewhere, another time with one of its own."""
    from fleet import Fleet
    from llama_server_shim import KEPT

    with ExitStack() as stack:
        addresses = {}
        for slots in (1, 2, 4):
            fleet = stack.enter_context(Fleet.start(agents=1, slots=slots, model=None))
            addresses[f"{KEPT}_{slots}"] = f"{fleet.inference} {fleet.management}"
        ours = run(folder, SHIM, suite, options, addresses)
    again = [
        f"unit/{test}"
        for test in passing
        if ours.get(test, "passed") != "passed" and reason(test) is None
    ]
    return {**ours, **(run(folder, SHIM, suite, [*options, *again]) if again else {})}


def outcomes(report: Path) -> dict[str, str]:
    """Return ``passed``, ``failed`` or ``skipped`` by ``file::test``."""
    found = {}
    for case in ET.parse(report).iter("testcase"):  # pytest wrote it
        kinds = {child.tag for child in case}
        failed = "failed" if kinds & {"failure", "error"} else "passed"
        file = case.attrib["classname"].rpartition(".")[2]
        found[f"{file}.py::{case.attrib['name']}"] = "skipped" if "skipped" in kinds else failed
    return found


def reason(test: str) -> str | None:
    """Return why this test may fail here; None if it may not."""
    plain = test.partition("[")[0]
    return DIFFERENCES.get(test) or DIFFERENCES.get(plain) or ELSEWHERE.get(plain.split("::")[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where build_llama_server.py has built it")
    parser.add_argument("options", nargs="*", help="of pytest, behind --")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(SHIM.parent)]
    (server,) = folder.glob("build-*/bin/llama-server")
    (suite,) = folder.glob("llama_cpp_python-*/vendor/llama.cpp/tools/server/tests")
    write_models(folder / "models")
    theirs = run(folder, server, suite, asked.options)
    passing = [test for test, outcome in theirs.items() if outcome == "passed"]
    ignored = [f"--ignore=unit/{file}" for file in ELSEWHERE]
    ours = run_here(folder, suite, [*ignored, *asked.options], passing)
    elsewhere = [test for test in passing if test.split("::")[0] in ELSEWHERE]
    asked_here = [test for test in passing if test in ours]
    failing = [test for test in asked_here if ours[test] != "passed"]
    unknown = [test for test in failing if reason(test) is None]
    stale = [row for row in DIFFERENCES if row in ours and ours[row] == "passed" and row in passing]
    print(f"llama-server: {dict(Counter(theirs.values()))}")
    print(f"of the {len(passing)} that pass there, {len(elsewhere)} are about another place;")
    print(f"of the other {len(asked_here)}, {len(asked_here) - len(failing)} pass here")
    for test in failing:
        print(f"  {test}: {reason(test) or 'UNKNOWN'}")
    for row in stale:
        print(f"  {row}: passes now, its row has to go")
    return 1 if unknown or stale else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
    sys.exit(main())
