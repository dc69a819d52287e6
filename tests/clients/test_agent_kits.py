"""Kits for agents run three turns of calls through the fleet, over each API that they speak."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from client_runs import ClientRuns
from installed_clients import installed

from scripted_model import Script, call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PROGRAMS = Path(__file__).parent / "programs"
CITIES = [["Paris", 1], ["Rome", 2], ["Oslo", 3]]
WARMEST = {"city": "Rome", "degrees": 20}
SHAPED = json.dumps(WARMEST)
SAID = "It is warm in Rome."
WAYS = ["whole", "streamed"]


def looked_up(*, thinks: bool = True) -> list[str]:
    """Return the calls that a model writes, each behind a thought or not."""
    return [
        call(
            "look_up",
            json.dumps({"city": city, "days": days}),
            thought=f"{city} is next." if thinks else "",
        )
        for city, days in CITIES
    ]


CALLS = looked_up()


def told(runs: ClientRuns, program: str, script: Script, arguments: list[str]) -> dict[str, Any]:
    """Run a program of ours with the kit that is installed; return what it printed."""
    folder = installed(Path(program).stem.removesuffix("_loop").replace("_", "-"))
    if program.endswith(".mjs"):
        place = shutil.copy(PROGRAMS / program, folder.parents[1])  # node looks beside it
        command = ["node", place]
    else:
        command = [str(folder / "python"), str(PROGRAMS / program)]
    output = runs.run(
        program.partition("_loop")[0],
        script,
        [*command, *arguments],
        env={
            "FLEET_URL": "@URL@",
            "OPENAI_BASE_URL": "@URL@/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it looks for prices in the internet else
        },
    )
    printed: dict[str, Any] = json.loads(output.splitlines()[-1])
    return printed


@pytest.mark.parametrize("way", WAYS)
def test_ollamas_own_for_javascript(runs: ClientRuns, way: str) -> None:
    script = Script([*CALLS, SAID], {"as JSON": SHAPED})
    printed = told(runs, "ollama_js_loop.mjs", script, [way])
    assert printed == {
        "calls": CITIES,
        "text": SAID,
        "shaped": WARMEST,
        "pulled": "success",
        "listed": True,
    }


def test_texts_over_ollamas_api(runs: ClientRuns) -> None:
    printed = told(runs, "ollama_texts_loop.py", Script([], otherwise=SAID), [])
    assert printed == {"texts": [SAID] * 8, "goes_on": True}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", ["responses", "chat_completions"])
def test_openai_agents_sdk(runs: ClientRuns, api: str, way: str) -> None:
    printed = told(runs, "openai_agents_loop.py", Script([*CALLS, SAID]), [api, way])
    assert printed == {"calls": CITIES, "text": SAID}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", ["chat_completions", "responses", "messages", "ollama"])
def test_langchain(runs: ClientRuns, api: str, way: str) -> None:
    """Over Anthropic's messages it asks for a shape by a tool that it requires."""
    shaped = call("Warmest", SHAPED) if api == "messages" else SHAPED
    script = Script([*CALLS, SAID], {"as JSON": shaped})
    printed = told(runs, "langchain_loop.py", script, [api, way])
    assert printed == {"calls": CITIES, "text": SAID, "shaped": WARMEST}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", ["chat_completions", "responses", "messages"])
def test_pydantic_ai(runs: ClientRuns, api: str, way: str) -> None:
    """It requires a call each time; over Anthropic's messages nobody thinks who was not told to."""
    script = Script([*looked_up(thinks=api != "messages"), call("final_result", SHAPED)])
    printed = told(runs, "pydantic_ai_loop.py", script, [api, way])
    assert printed == {"calls": CITIES, "shaped": WARMEST}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", ["responses", "chat_completions", "compatible", "messages"])
def test_ai_sdk(runs: ClientRuns, api: str, way: str) -> None:
    """Over Anthropic's messages it asks for a shape by a tool that it requires, too."""
    shaped = call("json", SHAPED) if api == "messages" else SHAPED
    script = Script([*CALLS, SAID], {"as JSON": shaped})
    printed = told(runs, "ai_sdk_loop.mjs", script, [api, way])
    assert printed == {"calls": CITIES, "text": SAID, "shaped": WARMEST}
