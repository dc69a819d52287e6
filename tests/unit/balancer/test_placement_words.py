"""The reason of a placement is told of every request, and names only agents that could have it."""

from __future__ import annotations

from paddler_trio.balancer.activity.placement_words import reason_of, why
from paddler_trio.scheduler.dispatch.agent_index import ANY, Constraint
from paddler_trio.scheduler.dispatch.placement import AgentKey
from paddler_trio.scheduler.dispatch.slot_decisions import Choice, Granted, Option, Prediction
from paddler_trio.scheduler.dispatch.slot_ledger import RequestKey, SlotLedger
from paddler_trio.scheduler.dispatch.warm_placement import WarmPlacement
from paddler_trio.wire.prompt_blocks import prompt_blocks
from paddler_trio.wire.trio.adapters import ADAPTER
from paddler_trio.wire.trio.request_frame import encode_work
from paddler_trio.wire.trio.work import Generate, TextPrompt

POETRY = frozenset({ADAPTER + "poetry"})
COMPARED = Prediction(2000, (Option("a1", 1900, 0.1), Option("a2", 0, 1.9, 0.5)))


def told(wanted: Constraint = ANY, prediction: Prediction | None = COMPARED) -> str:
    return why(reason_of(Choice(2, 1, 4, wanted, prediction)))


def test_what_was_compared_is_told_whatever_a_request_needs() -> None:
    compared = "a1: 1,900 of 2,000 tokens are there, predicted 0.10 s; a2: busy, 1.90 s"
    assert told() == compared
    assert told(Constraint(kind="m", revision="r")) == (
        f"{compared}; of agents with the model that began the answer on the revision of its call"
    )
    assert told(Constraint(needs=POETRY)) == (
        f"{compared}; of agents with what the request needs; it is computed with the LoRA adapters "
        "poetry"
    )


def test_without_a_prediction_loads_are_told() -> None:
    assert told(prediction=None) == (
        "least loaded of 2 agents that had a free slot: 1 of 4 slots busy"
    )
    assert why(reason_of(Choice(1, 0, 4, Constraint(needs=POETRY)))) == (
        "the only agent with what the request needs that had a free slot: 0 of 4 slots busy; it is "
        "computed with the LoRA adapters poetry"
    )
    assert why(reason_of(None)) == ""


def test_an_agent_that_may_not_have_a_request_is_not_named() -> None:
    placement = WarmPlacement(lambda: 0.0)
    ledger = SlotLedger(10, placement)
    for number, offers in enumerate((frozenset[str](), POETRY, POETRY), 1):
        agent = AgentKey(number)
        ledger.join(agent)
        placement.joined(agent, f"a{number}", "default")
        ledger.update(agent, slots_total=4, accepting=True, offers=offers)
    work = Generate(prompt=TextPrompt(text="Once upon a time. " * 200))
    blocks = prompt_blocks(work, encode_work(work).body)
    placement.index.put(AgentKey(1), placement_hashes(placement, blocks.hashes))
    placement.arrived(RequestKey(1), blocks, "default")
    granted = ledger.ask(RequestKey(1), needs=POETRY)
    assert isinstance(granted, Granted)
    words = why(reason_of(granted.choice))
    assert "a1" not in words
    assert "a2: predicted" in words
    assert "; a3: " in words
    assert words.count("; of agents with what the request needs") == 1


def placement_hashes(placement: WarmPlacement, hashes: tuple[int, ...]) -> tuple[int, ...]:
    """As requests of the deployment have them."""
    return hashes[0] ^ placement._fleet("default").salt, *hashes[1:]
