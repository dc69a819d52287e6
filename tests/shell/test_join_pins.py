"""A PIN lets one machine in: the one whose operator read it at this very balancer."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from joining_world import (
    BALANCER,
    CLIENT,
    FINGERPRINT,
    JSON,
    MANAGER,
    JoiningWorld,
    Said,
    join_body,
)
from structlog.testing import capture_logs
from trio.testing import MockClock

from paddler_trio.balancer.joining.join_pins import EXCHANGE_S, TRIES
from paddler_trio.net.joining.join_token import new_secret
from paddler_trio.net.joining.pin_exchange import PinBond, PinKeys, PinSide

BOND = PinBond("gpu", BALANCER, FINGERPRINT)


def other(pin: str) -> str:
    """Another PIN."""
    return f"{(int(pin) + 1) % 1_000_000:06}"


@attrs.define
class Agent:
    """The other end, that has this in mind."""

    world: JoiningWorld
    bond: PinBond = BOND

    async def begins(self, pin: str) -> tuple[Said, PinSide]:
        side = PinSide.start(pin, self.bond, is_agent=True)
        return await self.says(side.message), side

    async def says(self, message: str) -> Said:
        body = {"message": message, "name": self.bond.agent, "balancer": self.bond.balancer}
        return await self.world.ask("POST", "/api/v2/join/pin", body=body)

    async def confirms(self, said: Said, keys: PinKeys) -> Said:
        body = {"exchange": said.json()["exchange"], "confirmation": keys.agent_confirmation()}
        return await self.world.ask("POST", "/api/v2/join/pin/confirm", body=body)

    async def tries(self, pin: str) -> tuple[Said, PinKeys]:
        said, side = await self.begins(pin)
        assert said.status == 200, said.text
        keys = side.finish(str(said.json()["message"]))
        return await self.confirms(said, keys), keys


async def joins(world: JoiningWorld, confirmed: Said, keys: PinKeys, name: str = "gpu") -> Said:
    body = join_body(str(confirmed.json()["token"]), keys.token_secret(), new_secret(), name)
    return await world.ask("POST", "/api/v2/join", body=body)


async def test_the_right_pin_gives_a_token_for_this_agent(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    with capture_logs() as records:
        pin = await world.pin(labels={"rack": "7"})
        confirmed, keys = await Agent(world).tries(pin)
        answer = confirmed.json()
        said = [str(answer["token"]), str(answer["certificate_sha256"])]
        assert answer["confirmation"] == keys.balancer_confirmation(said)
        assert (await joins(world, confirmed, keys, "other")).status == 409
        joined = await joins(world, confirmed, keys)
    assert joined.status == 201
    assert joined.json()["labels"] == {"rack": "7"}
    written = json.dumps(records, default=str) + (tmp_path / "agents.json").read_text()
    assert pin not in written
    assert keys.token_secret() not in written
    assert (await joins(world, confirmed, keys)).status == 401  # the token has one use
    said_again, _ = await Agent(world).begins(pin)
    assert said_again.status == 401  # and so has the PIN


async def test_three_tries_burn_a_pin(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    pin = await world.pin()
    refusals = []
    for left in (2, 1, 0):
        refused, _ = await Agent(world).tries(other(pin))
        shown = await world.ask("GET", "/api/v2/join-pins", key=MANAGER)
        view = shown.json()["pin"]
        assert (view["tries_left"] if isinstance(view, dict) else 0) == left
        refusals.append(refused)
    late, _ = await Agent(world).begins(pin)
    assert refusals == [late] * TRIES
    assert late.status == 401
    assert world.registry.tokens() == []


async def test_a_begun_exchange_is_a_try_and_the_last_one_may_be_right(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    pin = await world.pin()
    begun = [await Agent(world).begins(pin) for _ in range(TRIES)]
    late, _ = await Agent(world).begins(pin)
    assert late.status == 401
    for (said, side), status in ((begun[-1], 200), (begun[0], 401)):  # it is for one machine
        keys = side.finish(str(said.json()["message"]))
        assert (await Agent(world).confirms(said, keys)).status == status
    assert len(world.registry.tokens()) == 1


@pytest.mark.parametrize(
    "bond",
    [
        attrs.evolve(BOND, fingerprint="cd" * 32),
        attrs.evolve(BOND, agent="other"),
    ],
    ids=["another certificate", "another name than it says"],
)
async def test_the_right_pin_with_something_else_in_mind_is_wrong(
    tmp_path: Path, bond: PinBond
) -> None:
    world = JoiningWorld(tmp_path)
    pin = await world.pin()
    side = PinSide.start(pin, bond, is_agent=True)
    said = await Agent(world).says(side.message)
    keys = side.finish(str(said.json()["message"]))
    assert (await Agent(world).confirms(said, keys)).status == 401
    assert world.registry.tokens() == []


async def test_the_pin_of_another_balancer_is_no_try(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    pin = await world.pin()
    said, _ = await Agent(world, attrs.evolve(BOND, balancer="attic:8060")).begins(pin)
    assert said.status == 409
    assert "attic:8060" in said.text
    assert (await Agent(world).tries(pin))[0].status == 200


async def test_what_was_heard_opens_nothing_when_it_is_said_again(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    pin = await world.pin()
    said, side = await Agent(world).begins(pin)
    keys = side.finish(str(said.json()["message"]))
    again = await Agent(world).says(side.message)
    assert again.json()["message"] != said.json()["message"]
    assert (await Agent(world).confirms(again, keys)).status == 401
    assert (await Agent(world).confirms(said, keys)).status == 200
    await world.pin()
    assert (await Agent(world).confirms(said, keys)).status == 401
    reflected = await world.ask(
        "POST",
        "/api/v2/join/pin",
        body={"message": said.json()["message"], "name": "gpu", "balancer": BALANCER},
    )
    assert reflected.status == 401


async def test_a_pin_and_an_exchange_expire(tmp_path: Path, mock_clock: MockClock) -> None:
    world = JoiningWorld(tmp_path)
    pin = await world.pin(ttl_s=60)
    said, side = await Agent(world).begins(pin)
    keys = side.finish(str(said.json()["message"]))
    mock_clock.jump(EXCHANGE_S + 1)
    assert (await Agent(world).confirms(said, keys)).status == 401
    mock_clock.jump(60 - EXCHANGE_S)
    late, _ = await Agent(world).begins(pin)
    assert late.status == 401
    shown = await world.ask("GET", "/api/v2/join-pins", key=MANAGER)
    assert shown.json() == {"pin": None, "problem": None}


async def test_a_new_pin_makes_the_one_before_worthless(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    before = await world.pin()
    said, side = await Agent(world).begins(before)
    pin = await world.pin()
    keys = side.finish(str(said.json()["message"]))
    assert (await Agent(world).confirms(said, keys)).status == 401
    if before != pin:
        assert (await Agent(world).tries(before))[0].status == 401
    assert (await Agent(world).tries(pin))[0].status == 200


async def test_who_may_make_and_revoke_pins(tmp_path: Path) -> None:
    world = JoiningWorld(tmp_path)
    credential = await world.joined()
    for key, status in ((None, 401), (CLIENT, 403), (credential.render(), 403)):
        for method in ("POST", "GET", "DELETE"):
            assert (await world.ask(method, "/api/v2/join-pins", key=key, body={})).status == status
    pin = await world.pin()
    shown = await world.ask("GET", "/api/v2/join-pins", key=MANAGER)
    assert pin not in shown.text
    assert (await world.ask("DELETE", "/api/v2/join-pins", key=MANAGER)).status == 204
    assert (await world.ask("DELETE", "/api/v2/join-pins", key=MANAGER)).status == 404
    assert (await Agent(world).begins(pin))[0].status == 401


async def test_without_a_certificate_or_keys_there_is_no_pin(tmp_path: Path) -> None:
    for world, reason in (
        (JoiningWorld(tmp_path, fingerprint=None), "--tls-cert"),
        (JoiningWorld(tmp_path, has_keys=False), "scope management"),
    ):
        made = await world.ask("POST", "/api/v2/join-pins", key=MANAGER, body={})
        assert made.status == 409
        assert reason in made.text


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"ttl_s": 901}, "ttl_s must be a whole number from 1 to 900"),
        ({"ttl_s": True}, "ttl_s"),
        ({"labels": {"a": 1}}, "@ $.labels.a"),
        ({"pin": "123456"}, "unknown field 'pin'"),
    ],
)
async def test_a_wrong_order_is_named(tmp_path: Path, order: object, said: str) -> None:
    answer = await JoiningWorld(tmp_path).ask("POST", "/api/v2/join-pins", key=MANAGER, body=order)
    assert answer.status == 400
    assert said in answer.text


TRIED = st.fixed_dictionaries(
    {
        "message": st.text("0123456789abcdef", min_size=66, max_size=66) | JSON,
        "name": st.just("gpu") | JSON,
        "balancer": st.just(BALANCER) | JSON,
    },
    optional={"more": JSON},
)
CONFIRMED = st.fixed_dictionaries(
    {
        "exchange": st.text("0123456789abcdef", min_size=12, max_size=12) | JSON,
        "confirmation": st.text("0123456789abcdef", min_size=64, max_size=64) | JSON,
    },
    optional={"more": JSON},
)


@given(st.lists(st.tuples(st.booleans(), TRIED | CONFIRMED | JSON), max_size=8))
def test_whatever_is_said_opens_nothing(said: list[tuple[bool, object]]) -> None:
    async def play() -> None:
        world = JoiningWorld(Path(folder))
        await world.pin()
        for begins, body in said:
            path = "/api/v2/join/pin" + ("" if begins else "/confirm")
            answer = await world.ask("POST", path, body=body)
            assert answer.status in (400, 401, 409, 413, 429) or (begins and answer.status == 200)
        pin = world.pins.in_force
        assert pin is None or pin.tries_left >= 0
        assert world.registry.tokens() == []

    with tempfile.TemporaryDirectory() as folder:
        trio.run(play)


async def test_a_body_that_is_too_long_is_refused_at_once(tmp_path: Path) -> None:
    answer = await JoiningWorld(tmp_path).ask(
        "POST", "/api/v2/join/pin", raw=b'{"message": "' + b"0" * 5000
    )
    assert answer.status == 413
