"""Objects of an agent show their state in one line."""

from __future__ import annotations

from typing import Any, cast

from paddler_trio.agent.children.preparation_server import PreparationWorker
from paddler_trio.agent.link.agent_status import AgentStatus
from paddler_trio.agent.link.balancer_link import BalancerLink
from paddler_trio.agent.requests.embedding_in_flight import EmbeddingInFlight, Portion
from paddler_trio.agent.requests.requests import AgentRequests
from paddler_trio.agent.requests.running_request import RunningRequest
from paddler_trio.net.tls.address import BalancerAddress

NOTHING = cast("Any", None)


def test_a_request_shows_how_far_it_is() -> None:
    request = RunningRequest("7.1", NOTHING, NOTHING)
    assert repr(request) == "<RunningRequest 7.1: in preparation>"
    request.waits_for_model = request.is_stopped = True
    assert repr(request) == "<RunningRequest 7.1: waits for a model, stopped>"
    request = RunningRequest("7.1", NOTHING, NOTHING, key=3, engine=cast("Any", object()))
    assert repr(request) == "<RunningRequest 7.1: sequence 3 on the engine>"
    request.is_over = True
    assert repr(request) == "<RunningRequest 7.1: over>"


def test_embeddings_show_their_portions() -> None:
    embedding = EmbeddingInFlight("8.1", NOTHING, True, NOTHING, portions={1: Portion(0, 2)})
    assert repr(embedding) == "<EmbeddingInFlight 8.1: 1 portions on the engine, 0 results>"


def test_a_worker_shows_whether_it_lives() -> None:
    assert repr(PreparationWorker(NOTHING, (), 7, 5)) == "<PreparationWorker 7: reusable>"
    assert repr(PreparationWorker(NOTHING, (), 7, -1)) == "<PreparationWorker 7: killed>"


def test_a_link_shows_its_balancer_and_no_token() -> None:
    status = AgentStatus(4)
    requests = AgentRequests(status)
    link = BalancerLink(BalancerAddress("127.0.0.1", 8060), "a", status, NOTHING, requests)
    assert repr(link) == "<BalancerLink 127.0.0.1:8060 dialling>"
    assert repr(requests) == (
        "<AgentRequests: 0 generations, <EmbeddingRequests: 0 running, 0 portions>>"
    )
