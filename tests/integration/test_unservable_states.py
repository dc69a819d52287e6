"""Desired states that no agent can serve: every process lives on, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import Fleet

from encoder_models import write_bert
from paddler_trio.processes.engine.proof import BUNDLED_MODEL
from paddler_trio.wire.codec import unstructure
from paddler_trio.wire.paddler.desired_state import BalancerDesiredState

V1, V2 = "/api/v1/balancer_desired_state", "/api/v2/balancer_desired_state"


def state_of(**changes: object) -> dict[str, Any]:
    state = unstructure(BalancerDesiredState.default())
    assert isinstance(state, dict)
    return {**state, **changes}


def put(fleet: Fleet, path: str, state: object) -> httpx.Response:
    return httpx.put(f"{fleet.management_url}{path}", json=state, trust_env=False, timeout=60)


def issues_of(fleet: Fleet, *, tag: str) -> list[dict[str, Any]]:
    """What the one agent says, as soon as it says something of this kind."""

    def found(view: Any) -> list[dict[str, Any]]:
        (agent,) = view["agents"]
        return [issue[tag] for issue in agent["issues"] if tag in issue]

    return found(fleet.wait_until(lambda view: bool(found(view)), what=tag))


def test_a_path_with_a_nul_is_refused_and_one_that_was_stored_harms_nobody(tmp_path: Path) -> None:
    bad = state_of(model={"LocalToAgent": "/models/a\0b.gguf"})
    stored = tmp_path / "state.json"
    stored.write_text(json.dumps({"balancer_desired_state": bad, "version": "1"}))
    with Fleet.start(model=None, balancer_options=[f"--state-database=file://{stored}"]) as fleet:
        fleet.balancer.wait_for_log("the stored desired state cannot be served: store another")
        (issue,) = issues_of(fleet, tag="ModelFileDoesNotExist")
        assert issue == {"model_path": "/models/a\0b.gguf"}
        for path, body in ((V1, bad), (V2, {"state": bad, "extras": {"engine": {}}})):
            answer = put(fleet, path, body)
            assert answer.status_code == 400
            assert answer.text.startswith("model.LocalToAgent has a NUL at character 9")
        fleet.start_agent("late")
        fleet.wait_until(
            lambda view: len(view["agents"]) == 2 and all(a["issues"] for a in view["agents"]),
            what="who comes later lives too",
        )
        fleet.desire(BUNDLED_MODEL)
        fleet.wait_serving(2)


def test_a_context_beyond_every_memory_is_an_issue_of_slots() -> None:
    with Fleet.start(model=None, slots=2) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=2**31 - 1)
        found = issues_of(fleet, tag="SlotCannotStart")
        assert [issue["slot_index"] for issue in found] == [0, 1]
        assert found[0]["error"].startswith("context_size is 2147483647 tokens")
        (agent,) = fleet.view()["agents"]
        assert agent["slots_total"] == 0
        parameters = {**state_of()["inference_parameters"], "context_size": 2**31}
        answer = put(fleet, V1, state_of(inference_parameters=parameters))
        assert answer.status_code == 400
        assert answer.text == "context_size is 2147483648 tokens, the limit is 2147483647"


@pytest.mark.parametrize("layout", ["split", "unified"])
def test_more_slots_than_llama_cpp_can_run_are_issues(layout: str) -> None:
    with Fleet.start(model=None, slots=257, agent_options=[f"--kv-layout={layout}"]) as fleet:
        fleet.desire(BUNDLED_MODEL, context_size=8192)
        found = issues_of(fleet, tag="SlotCannotStart")
        assert len(found) == 256
        assert found[0]["error"].startswith("257 slots: llama.cpp runs at most 256 sequences")


def test_an_encoder_that_is_to_generate_lacks_a_chat_template(tmp_path: Path) -> None:
    model = write_bert(tmp_path / "encoder.gguf")
    with Fleet.start(model=None) as fleet:
        fleet.desire(model)
        (issue,) = issues_of(fleet, tag="UnableToFindChatTemplate")
        assert issue == {"model_path": str(model)}
        fleet.desire(model, enable_embeddings=True)
        fleet.wait_serving()
