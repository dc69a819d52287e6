"""The table of agents: rates from two looks, and what an engine has no figures for."""

from __future__ import annotations

from rich.console import Console

from paddler_trio.cli.agents import TokenRates, agents_table
from paddler_trio.cli.management_client import AgentView


def agent(drawn: float | None, number: str = "a") -> AgentView:
    engine = None
    if drawn is not None:
        engine = {
            "drawn_tokens": drawn,
            "prompt_tokens": 25.0,
            "cached_tokens": 75.0,
            "cells_used": 10.0,
            "cells_total": 40.0,
        }
    return AgentView(
        id=number,
        name=None,
        protocol="paddler-trio.1",
        is_accepting=True,
        slots_processing=0,
        slots_total=4,
        desired_slots_total=4,
        model_path="/m.gguf",
        state_application_status="Applied",
        issues=[],
        engine=engine,
    )


def shown(*agents: AgentView, rates: TokenRates | None) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(agents_table(agents, rates))
    return capture.get()


def test_a_rate_is_what_was_drawn_between_two_looks() -> None:
    rates = TokenRates()
    rates.look([agent(100)], 10.0)
    assert rates.of(agent(100)) is None
    rates.look([agent(180)], 10.2)
    assert rates.of(agent(180)) is None, "too early to say"
    rates.look([agent(500)], 12.0)
    assert rates.of(agent(500)) == 200
    rates.look([agent(3)], 13.0)
    assert rates.of(agent(3)) is None, "another engine"


def test_the_engine_is_shown_only_when_watching() -> None:
    rates = TokenRates()
    rates.look([agent(0)], 0.0)
    rates.look([agent(50)], 1.0)
    watched = shown(agent(50), agent(None, "b"), rates=rates)
    assert "tokens/s" in watched
    assert "50" in watched
    assert "75%" in watched
    assert "10/40" in watched
    assert "tokens/s" not in shown(agent(50), rates=None)
