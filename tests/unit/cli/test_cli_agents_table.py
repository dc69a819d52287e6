"""The table of agents: rates from two looks, and what an engine has no figures for."""

from __future__ import annotations

import attrs
import pytest

from paddler_trio.cli.live.agents import EngineRates, agents_table, phase_text
from paddler_trio.cli.management_client import AgentView


def agent(sampled: float | None, number: str = "a", **stats: float) -> AgentView:
    engine = None
    if sampled is not None:
        engine = {
            "drawn_tokens": sampled,
            "prompt_tokens": 25.0,
            "cached_tokens": 75.0,
            "cells_used": 10.0,
            "cells_total": 40.0,
            **stats,
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


def shown(*agents: AgentView, rates: EngineRates | None) -> str:
    return "\n".join(line.plain for line in agents_table(agents, rates))


def cells_of(table: str, row: int) -> dict[str, str]:
    """The words of a row under their heads; every cell of these tables is one word."""
    lines = [line.split() for line in table.splitlines()]
    return dict(zip(lines[0], lines[row], strict=True))


def test_a_rate_is_what_was_drawn_between_two_looks() -> None:
    rates = EngineRates()
    rates.look([agent(100)], 10.0)
    assert rates.of(agent(100), "drawn_tokens") is None
    rates.look([agent(180)], 10.2)
    assert rates.of(agent(180), "drawn_tokens") is None, "too early to say"
    rates.look([agent(500)], 12.0)
    assert rates.of(agent(500), "drawn_tokens") == 200
    rates.look([agent(3)], 13.0)
    assert rates.of(agent(3), "drawn_tokens") is None, "another engine"


def test_the_engine_is_shown_only_when_watching() -> None:
    rates = EngineRates()
    rates.look([agent(0)], 0.0)
    rates.look([agent(50)], 1.0)
    watched = cells_of(shown(agent(50), agent(None, "b"), rates=rates), 1)
    assert watched["tokens/s"] == "50"
    assert watched["embedded/s"] == "-"
    assert watched["cached"] == "75%"
    assert watched["cells"] == "10/40"
    assert "tokens/s" not in shown(agent(50), rates=None)


def test_what_is_embedded_has_a_rate_of_its_own_and_an_encoder_no_other() -> None:
    def both(sampled: float, embedded: float) -> list[AgentView]:
        nothing = {"prompt_tokens": 0.0, "cached_tokens": 0.0, "cells_used": 0.0}
        encoder = agent(0, "b", embedding_tokens=embedded, cells_total=0.0, **nothing)
        return [agent(sampled, embedding_tokens=embedded), encoder]

    rates = EngineRates()
    rates.look(both(0, 1000), 0.0)
    rates.look(both(50, 1600), 2.0)
    table = shown(*both(50, 1600), rates=rates)
    decoder, encoder = cells_of(table, 1), cells_of(table, 2)
    assert (decoder["tokens/s"], decoder["embedded/s"], decoder["cells"]) == ("25", "300", "10/40")
    assert (encoder["tokens/s"], encoder["embedded/s"], encoder["cells"]) == ("-", "300", "-")
    rates.look(both(60, 10), 4.0)
    assert rates.of(agent(60), "embedding_tokens") is None, "another engine"


@pytest.mark.parametrize(
    ("download", "shown_as"),
    [
        (None, "downloading 25%"),
        ({"bytes_per_s": None, "file_count": 1}, "downloading 25%"),
        (
            {"bytes_per_s": 12_340_000, "remaining_s": 125, "file_index": 2, "file_count": 3},
            "downloading 25%, 12.3 MB/s, 2:05 left, file 2 of 3",
        ),
        ({"bytes_per_s": "fast", "remaining_s": [], "file_count": "?"}, "downloading 25%"),
    ],
)
def test_a_download_shows_how_far_how_fast_and_how_long(
    download: dict[str, object] | None, shown_as: str
) -> None:
    fetching = attrs.evolve(
        agent(None),
        phase="downloading",
        state={"word": "downloading 25%", "severity": "info"},
        download=download,
    )
    assert phase_text(fetching).plain == shown_as


def test_the_phase_is_the_word_of_the_balancer() -> None:
    """An agent that failed too often reports that it serves."""
    ejected = attrs.evolve(
        agent(None), phase="serving", state={"word": "ejected", "severity": "bad"}
    )
    assert phase_text(ejected).plain == "ejected"
    assert phase_text(ejected).style == "red"
    fetching = attrs.evolve(
        ejected,
        phase="downloading",
        state={"word": "downloading 25%", "severity": "info"},
        download={"bytes_per_s": 1_000_000, "remaining_s": 5, "file_index": 1, "file_count": 1},
    )
    assert phase_text(fetching).plain == "downloading 25%, 1.0 MB/s, 0:05 left"


def test_deployments_have_a_column_where_there_is_more_than_one() -> None:
    one = shown(agent(1), rates=None)
    assert "deployment" not in one
    both = shown(agent(1), attrs.evolve(agent(1, "b"), deployment="coder"), rates=None)
    assert [line.split()[2] for line in both.splitlines()] == ["deployment", "default", "coder"]


def test_servers_behind_agents_have_an_address_and_the_names_of_their_models() -> None:
    server = {"address": "10.0.3.17:8088", "models": ["qwen"]}
    behind = attrs.evolve(agent(None), model_path=None, upstream=server)
    table = shown(behind, agent(None, "b"), rates=None)
    assert cells_of(table, 1)["address"] == "10.0.3.17:8088"
    assert cells_of(table, 1)["model"] == "qwen"
    assert (cells_of(table, 2)["address"], cells_of(table, 2)["model"]) == ("-", "/m.gguf")
    assert "address" not in shown(agent(None), rates=None)
