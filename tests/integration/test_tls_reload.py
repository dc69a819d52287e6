"""Certificates replaced under load: no request fails, and none waits for it."""

from __future__ import annotations

import signal
import ssl
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from fleet import BUNDLED_MODEL, Daemon
from streams import CONVERSATION, Heard, listen, story
from tls_balancer import PATIENCE_S, TlsBalancer, install, tls_balancer

from certificates import Authority, Pair

SLOTS = 16


@attrs.define
class Tally:
    """What the clients of one run saw."""

    done: int = 0
    failed: list[Heard | str] = attrs.field(factory=list)


@pytest.mark.parametrize(
    ("streams", "duration_s"), [(20, 3), pytest.param(100, 60, marks=pytest.mark.slow)]
)
async def test_no_request_fails_while_certificates_are_replaced(
    tmp_path: Path, streams: int, duration_s: float
) -> None:
    authority = Authority.make(tmp_path / "authority")
    pairs = [authority.sign(f"number-{count}") for count in range(3)]
    used = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    install(pairs[0], used)
    waiting = ("--max-buffered-requests=300", "--buffered-request-timeout=90000")
    with tls_balancer(authority, used, *waiting) as balancer:
        agent = await trio.to_thread.run_sync(_serving_agent, balancer)
        tally, context = Tally(), authority.client_context()
        try:
            async with trio.open_nursery() as nursery:
                stop_s = trio.current_time() + duration_s
                for number in range(streams):
                    nursery.start_soon(_ask, balancer, context, tally, number, stop_s)
                replaced = await _replace(balancer, pairs, used, stop_s)
        finally:
            agent.end()
        read_again = [line for line in balancer.daemon.log if "certificate read again" in line]
    print(f"{tally.done} requests over {replaced} certificates, {len(read_again)} readings")
    assert tally.failed == []
    assert tally.done >= streams
    assert len(read_again) >= max(1, duration_s // 2), f"{replaced} certificates were installed"


def _serving_agent(balancer: TlsBalancer) -> Daemon:
    """An agent with the bundled model, serving; it dials over TLS."""
    management, context = balancer.url("management", ""), balancer.authority.client_context()
    with httpx.Client(
        base_url=management, verify=context, trust_env=False, timeout=PATIENCE_S
    ) as client:
        state = client.get("/api/v1/balancer_desired_state").raise_for_status().json()
        state["model"] = {"LocalToAgent": str(BUNDLED_MODEL)}
        state["inference_parameters"] |= {"context_size": 1024 * SLOTS}
        client.put("/api/v1/balancer_desired_state", json=state).raise_for_status()
        agent = Daemon.start(
            "agent",
            [
                "agent",
                f"--management-addr={management}",
                f"--tls-ca={balancer.authority.cert}",
                f"--slots={SLOTS}",
                "--fit=off",
                "--log-json",
            ],
            {},
        )
        try:
            with client.stream("GET", "/api/v2/agents/stream") as answer:
                for line in answer.iter_lines():
                    if '"is_accepting":true' in line and f'"slots_total":{SLOTS}' in line:
                        return agent
            raise AssertionError("the agent does not serve")
        except BaseException:
            agent.end()
            raise


async def _replace(balancer: TlsBalancer, pairs: list[Pair], used: Pair, stop_s: float) -> int:
    """A new certificate each second; a signal says so of every other one, the rest is found."""
    count = 0
    while trio.current_time() < stop_s:
        count += 1
        install(pairs[count % len(pairs)], used)
        if count % 2:
            balancer.daemon.signal(signal.SIGHUP)
        await trio.sleep(1)
    return count


async def _ask(
    balancer: TlsBalancer, context: ssl.SSLContext, tally: Tally, number: int, stop_s: float
) -> None:
    """One request after another, each over a connection of its own."""
    while trio.current_time() < stop_s:
        heard = Heard()
        try:
            await listen(
                balancer.addresses["inference"],
                CONVERSATION,
                story(number, max_tokens=40),
                heard,
                tls=context,
            )
        except (OSError, trio.BrokenResourceError, AssertionError) as error:
            tally.failed.append(f"{error!r} from {error.__cause__!r}")
            return
        if heard.endings == ["Done"] and heard.tokens > 0:
            tally.done += 1
        else:
            tally.failed.append(heard)
