"""Whatever answers at the balancer's address, the agent dials again: real sockets, odd peers."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.typing import EventDict
from wrong_peers import PEERS, TEXT, agreed, dial, frame, frames, impatient, reasons, says, unmasked

from effort import examples
from paddler_trio.agent.link import balancer_connection

__all__ = ["impatient"]  # a fixture

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("impatient")]


@pytest.mark.parametrize("name", PEERS)
async def test_an_agent_dials_again_after(name: str) -> None:
    ends = reasons(await dial(PEERS[name]))
    assert ends
    assert all(ends), "every end says why"


@settings(max_examples=examples(25))
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.booleans())
def test_an_agent_dials_again_after_any_bytes(parts: list[bytes], is_agreed: bool) -> None:
    data = b"".join(parts)
    trio.run(dial, frames(data) if is_agreed else says(data))


async def test_a_bug_of_ours_is_loud_and_costs_the_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = True

    def fails(text: str) -> object:
        nonlocal broken
        if broken:
            broken = False
            raise RuntimeError("a bug")
        return None

    monkeypatch.setattr(balancer_connection, "parse_agent_message", fails)
    records = await dial(frames(frame(TEXT, b"{}"), then_waits=True))
    assert "RuntimeError: a bug" in reasons(records)[0]
    (loud,) = [record for record in records if record["event"] == "the link failed"]
    assert isinstance(loud["exc_info"], ExceptionGroup)


async def test_what_only_a_newer_balancer_says_is_ignored_and_the_link_stays() -> None:
    unknown = [
        b'{"Notification":"Novelty"}',
        b'{"Notification":{"Novelty":{"a":1}}}',
        b'{"Trio":{"Novelty":{}}}',
    ]
    records: list[EventDict] = []

    async def newer(stream: trio.SocketStream) -> None:
        await agreed(stream)
        await stream.send_all(b"".join(frame(TEXT, text) for text in unknown * 3))
        await stream.send_all(frame(TEXT, b'{"Trio":{"Tell":{"id":"q1"}}}'))
        received = b""
        while b"malformed request: this agent is too old" not in unmasked(received):
            received += await stream.receive_some(65536)

    records = await dial(newer)
    ignored = [r for r in records if r["event"] == "unknown notification ignored"]
    assert [r["notification"] for r in ignored] == ["Novelty"]
    assert reasons(records)[0] == "the connection closed (code 1006)", "the peer ended it"
