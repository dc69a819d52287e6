"""What cannot fit is refused while the old model serves; `auto` chooses; `model fit` prints.

The agent may take a fixed amount of memory for a model, so that every machine gives one answer.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_processes
import httpx
import pytest
import trio
from fleet import BUNDLED_MODEL, END_S, OWN_INTERPRETER, Fleet, serving
from streams import CONVERSATION, RAW, Heard, listen, song, story, until_first_tokens

from paddler_trio.cli.balancer_http import NoBalancerError
from paddler_trio.cli.client_flags import ManagementFlags
from paddler_trio.cli.model import fit_run
from paddler_trio.cli.model.fit_run import run_fit
from paddler_trio.cli.model.model_order import ModelRunOptions, sources_of

LIMIT_MIB = 200
TOO_MUCH = 262_144
"""Tokens; with an F16 cache they take 1.6 GB."""
F16 = {"k_cache_dtype": "F16", "v_cache_dtype": "F16"}


@pytest.fixture(scope="module")
def small_fleet() -> Iterator[Fleet]:
    """One agent with two slots and little memory; every test here says first what it wants."""
    options = ["--fit=on", f"--memory-limit={LIMIT_MIB}", "--memory-reserve=0"]
    with Fleet.start(agents=1, slots=2, agent_options=options, env=OWN_INTERPRETER) as fleet:
        yield fleet


def cli(fleet: Fleet, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked_processes.run("model", *arguments, "--management-addr", fleet.management)


def agent_of(view: Any) -> dict[str, Any]:
    (agent,) = view["agents"]
    assert isinstance(agent, dict)
    return agent


def is_refused(view: Any) -> bool:
    """The phase and the issues come in two frames."""
    agent = agent_of(view)
    return agent["phase"] == "failed" and bool(agent["issues"])


def test_what_does_not_fit_is_refused_with_numbers_and_the_old_model_goes_on_serving(
    small_fleet: Fleet,
) -> None:
    fleet = small_fleet
    old = fleet.desire(BUNDLED_MODEL, context_size=8192, **F16)
    fleet.wait_serving()
    engine = fleet.agents["a1"].engine_pid
    running: list[Heard] = []
    late = Heard()

    async def sing(is_refused: trio.Event) -> None:
        """One song after the other: a refusal on a slow machine finds one of them running."""
        while not is_refused.is_set():
            running.append(Heard())
            await listen(fleet.inference, RAW, song(max_tokens=1000), running[-1])

    async def refuse() -> None:
        is_over = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sing, is_over)
            await until_first_tokens(running, 1)
            await trio.to_thread.run_sync(
                lambda: fleet.desire(BUNDLED_MODEL, context_size=TOO_MUCH, **F16)
            )
            view = await trio.to_thread.run_sync(lambda: fleet.wait_until(is_refused))
            is_over.set()
            judge(agent_of(view), view["desired_state_digest"])
            await listen(fleet.inference, CONVERSATION, story(1, max_tokens=5), late)

    def judge(agent: dict[str, Any], wanted: str) -> None:
        assert (agent["wanted_state"], agent["served_state"]) == (wanted, old)
        assert agent["is_accepting"]
        assert agent["slots_total"] == 2
        assert agent["state_application_status"] == "AttemptedAndRetrying"
        detail = agent["detail"]
        assert detail.startswith("the model does not fit: needs 1.6")
        assert f"on host, {LIMIT_MIB} MiB are available; context-size " in detail
        errors = {issue["SlotCannotStart"]["error"] for issue in agent["issues"]}
        assert errors == {detail.removeprefix("the model does not fit: ")}

    trio.run(refuse)
    assert [heard.endings for heard in running] == [["Done"]] * len(running)
    assert all(heard.tokens >= 999 for heard in running)
    assert late.endings == ["Done"], "new requests are answered by the old model"
    assert fleet.agents["a1"].engine_pid == engine
    back = fleet.desire(BUNDLED_MODEL, context_size=8192, **F16)
    assert back == old
    view = fleet.wait_until(
        lambda view: serving(view, 1) and not agent_of(view)["issues"],
        what="the old model is the wanted one, and nothing is wrong with it",
    )
    assert agent_of(view)["detail"] is None
    assert fleet.agents["a1"].engine_pid == engine, "it never went"


def test_a_file_that_is_no_model_is_refused_before_the_old_one_goes(
    small_fleet: Fleet, tmp_path: Path
) -> None:
    small_fleet.desire(BUNDLED_MODEL, **F16)
    small_fleet.wait_serving()
    engine = small_fleet.agents["a1"].engine_pid
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(BUNDLED_MODEL.read_bytes()[:100_000])
    small_fleet.desire(broken, **F16)
    agent = agent_of(small_fleet.wait_until(is_refused))
    assert agent["issues"] == [{"ModelCannotBeLoaded": {"model_path": str(broken)}}]
    assert agent["is_accepting"]
    assert small_fleet.agents["a1"].engine_pid == engine
    broken.write_bytes(BUNDLED_MODEL.read_bytes())
    small_fleet.wait_serving()
    assert small_fleet.agents["a1"].engine_pid != engine


def wait_remembered(fleet: Fleet, host_bytes: int) -> None:
    """Until the newest load that the next prediction knows of took so much of the host; it is
    written when the model serves already."""
    file = Path(fleet.env["PADDLER_CACHE_DIR"], "memory.json")
    give_up_s = time.monotonic() + END_S
    loads: list[dict[str, Any]] = []
    while not (loads and loads[-1]["actual"]["host"] == host_bytes):
        assert time.monotonic() < give_up_s, loads[-1:]
        time.sleep(0.05)
        loads = json.loads(file.read_text()) if file.exists() else []


def test_an_agent_chooses_its_context_and_reports_what_it_chose(small_fleet: Fleet) -> None:
    small_fleet.desire(BUNDLED_MODEL, **F16)
    swap = ("swap", BUNDLED_MODEL, "--context-size=auto", "--n-gpu-layers", "auto")
    swapped = cli(small_fleet, *swap)
    assert swapped.returncode == 0, swapped.stderr
    *_, served, chose = swapped.stdout.splitlines()
    assert served.startswith("served by a1")
    assert chose == "a1 chose context-size 4096, n-gpu-layers 0"
    agent = agent_of(small_fleet.view())
    memory = agent["memory"]
    assert memory["chosen"] == ["context_size", "n_gpu_layers"]
    assert memory["context_size"] == 4096, "two slots of what the model was trained with"
    (host,) = memory["devices"]
    assert host["device"] == "host"
    assert abs(host["predicted"] - host["actual"]) < 50 << 20
    url = f"{small_fleet.management_url}/api/v1/balancer_desired_state"
    state = httpx.get(url, trust_env=False, timeout=END_S).json()
    assert state["inference_parameters"]["context_size"] == 1024, "what Paddler's agents use"
    wait_remembered(small_fleet, host["actual"])
    again = cli(small_fleet, *swap)
    assert again.stdout.startswith("already desired"), again.stdout
    back = cli(small_fleet, "swap", BUNDLED_MODEL, "--context-size=2048", "--n-gpu-layers=0")
    assert back.returncode == 0, back.stderr
    assert "auto.context_size: yes -> not set" in back.stdout
    assert agent_of(small_fleet.view())["memory"]["chosen"] == []


def test_model_fit_prints_a_table_and_its_exit_code_is_the_verdict(small_fleet: Fleet) -> None:
    small_fleet.desire(BUNDLED_MODEL, **F16)
    small_fleet.wait_serving()
    fits = cli(small_fleet, "fit", BUNDLED_MODEL, "--agent=a1")
    assert fits.returncode == 0, fits.stderr + fits.stdout
    head, host, verdict = fits.stdout.splitlines()
    assert head.split()[:4] == ["device", "weights", "KV", "compute"]
    assert host.split()[0] == "host"
    assert "200 MiB" in host
    assert verdict.startswith("a1: fits: context-size 1024, 2 slots (512 tokens each), F16/F16 KV")
    refused = cli(small_fleet, "fit", BUNDLED_MODEL, "--context-size", TOO_MUCH, "--json")
    assert refused.returncode == 1, refused.stderr
    (answer,) = json.loads(refused.stdout)["agents"]
    assert answer["agent"] == "a1"
    assert answer["fits"] is False
    report = answer["report"]
    (option,) = (each for each in report["options"] if each["changes"] == ["context-size"])
    assert 0 < option["context_size"] < TOO_MUCH
    assert f"context-size {option['context_size']} fits" in answer["problem"]
    fewer = cli(small_fleet, "fit", BUNDLED_MODEL, "--slots=1", "--agent=a1", "--context-size=auto")
    assert "context-size 2048 (auto), 1 slot" in fewer.stdout
    base = f"{small_fleet.management_url}/api/v2/"
    both = httpx.get(f"{base}balancer_desired_state", trust_env=False, timeout=END_S).json()
    for agent, body, status in (
        ("a1", both, 200),
        ("nobody", both, 404),
        ("a1", {**both, "slots": "many"}, 400),
        ("a1", {**both, "state": {**both["state"], "model": "None"}}, 400),
        ("a1", {**both, "slots": 257}, 422),
    ):
        url = f"{base}agents/{agent}/fit"
        answer = httpx.post(url, json=body, trust_env=False, timeout=END_S)
        assert answer.status_code == status, answer.text
    missing = cli(small_fleet, "fit", "/nowhere.gguf", "--agent=a1")
    assert missing.returncode == 1
    assert "a1: does not load" in missing.stdout


def test_model_fit_without_an_agent_judges_this_machine() -> None:
    command = (sys.executable, "-m", "paddler_trio", "model", "fit", str(BUNDLED_MODEL), "--here")
    here = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert here.returncode == 0, here.stdout
    assert "this machine: fits: context-size 8192, 1 slot, Q8_0/Q8_0 KV" in here.stdout


def test_model_fit_judges_this_machine_where_no_balancer_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen, and keeps the port
        usual = ManagementFlags(address=f"127.0.0.1:{nobody.getsockname()[1]}")

        def fit(agent: str | None) -> int:
            model, projection = sources_of(str(BUNDLED_MODEL), None)
            wish = ModelRunOptions(model=model, projection=projection, parameters={}, template=None)
            return run_fit(
                wish, agent=agent, here=False, slots=None, as_json=False, management=usual
            )

        with pytest.raises(NoBalancerError):
            fit(None)  # this one was asked for
        monkeypatch.setattr(fit_run, "ManagementFlags", lambda: usual)
        with pytest.raises(NoBalancerError):
            fit("a1")
        assert fit(None) == 0
    told = capsys.readouterr()
    assert "judging this machine" in told.err
    assert "this machine: fits: context-size 8192" in told.out
