"""The faults of an agent, at their times, on whatever it is doing then."""

from __future__ import annotations

import random

import attrs
import trio
from scenario import Fault, Strike
from sim_agent import SimAgent

from paddler_trio.wire.paddler.messages import RegisterAgent, render

TWIN_WAITS_S = 1.0
LEAVE_DRAIN_S = 10.0


async def strike_all(agent: SimAgent, rng: random.Random) -> None:
    """Everything the scenario has in store for this agent; a strike at nothing is none."""
    async with trio.open_nursery() as nursery:
        for strike in agent.plan.strikes:
            await trio.sleep_until(strike.at_s)
            agent.world.note(agent.plan.id, f"FAULT {strike.fault.name} {strike.for_s} s")
            nursery.start_soon(_strike, agent, strike, rng)


async def _strike(agent: SimAgent, strike: Strike, rng: random.Random) -> None:
    now_s = trio.current_time()
    wire, engine = agent.wire, agent.engine
    match strike.fault:
        case Fault.RESET if wire is not None:
            agent.away_until_s = now_s + strike.for_s
            wire.doom = "reset"
            wire.hang_up()
        case Fault.BURST_RESET:
            agent.frames_before_reset = rng.randint(0, 3)
        case Fault.VANISH if wire is not None:
            agent.away_until_s = now_s + strike.for_s
            wire.doom = "vanished"
            agent.connection.cancel()
        case Fault.STALL:
            engine.stalled_until_s = max(engine.stalled_until_s, now_s + strike.for_s)
        case Fault.FREEZE:
            agent.frozen_until_s = max(agent.frozen_until_s, now_s + strike.for_s)
            if wire is not None:
                wire.doom = "frozen"
        case Fault.CRASH if engine.is_up and not agent.plan.is_paddler:
            engine.crash(strike.for_s, suspects=[])
        case Fault.LEAVE if wire is not None:
            await _leave(agent, strike)
        case Fault.MALFORMED if wire is not None:
            wire.doom = "malformed"
            agent.say_raw(_malformed(agent, rng))
        case Fault.UNKNOWN:
            agent.say_raw(_unknown(rng, is_paddler=agent.plan.is_paddler))
        case Fault.STALE:
            agent.say_raw(agent.standing().stale_frame().decode())
        case Fault.BINARY if wire is not None:
            await wire.tell({"type": "websocket.receive", "bytes": b"\0", "text": None})
        case Fault.TWIN if wire is not None:
            await _twin(agent)
        case Fault.SHRINK:
            agent.slots_withheld += agent.slots_withheld < agent.plan.slots
            agent.publish()
            await trio.sleep(strike.for_s)
            agent.slots_withheld = 0
            agent.publish()
        case _:
            pass


async def _leave(agent: SimAgent, strike: Strike) -> None:
    """Ours finishes what it has; Paddler's goes at once."""
    wire = agent.wire
    assert wire is not None
    agent.away_until_s = trio.current_time() + strike.for_s
    if not agent.plan.is_paddler:
        agent.is_leaving = True
        agent.publish()
        with trio.move_on_after(LEAVE_DRAIN_S):
            await agent.engine.wait_idle()
    if agent.wire is wire:
        wire.doom = "deregistered"
        agent.say_goodbye()


async def _twin(agent: SimAgent) -> None:
    """Somebody else with the same id: turned away while the first one lives."""
    twin = agent.world.dial_agent(agent.plan)
    if twin is None:
        return
    twin.doom = "twin"
    status = attrs.evolve(agent.standing(), slots_offered=0, version=0).snapshot()
    await twin.say(render(RegisterAgent("twin", status)).decode())
    with trio.move_on_after(TWIN_WAITS_S):
        while (heard := await twin.hear()) is not None:
            if heard.message["type"] == "websocket.close":
                agent.world.note(agent.plan.id, f"twin closed with {heard.message['code']}")
    twin.hang_up()


def _malformed(agent: SimAgent, rng: random.Random) -> str:
    """A frame that is none; half of them name a request that runs here."""
    running = list(agent.engine.running.values())
    frames = ["{", "[]", "null", '{"Nonsense": {}}', '{"Trio":{"Step":7}}', '{"Response": {}}']
    frames += ['{"Trio":{"Step":[{"id":"1.1"}]}}', '{"Trio":{"GetTree":{"id":"1.1"}}}']
    if not running or rng.random() < 0.5:
        return rng.choice(frames)
    chosen = rng.choice(running)
    chosen.story.was_named_by_broken_frame = True
    responses = ['"response":{"Wat":1}', '"response":{"GeneratedToken":{"Shout":"x"}}', '"x":1']
    responses += ['"response":{"GeneratedToken":"Done"}', '"response":{"ModelMetadata":null}']
    envelope = f'"generated_by":null,"request_id":"{chosen.wire_id}"'
    named = [f'{{"Response":{{{envelope},{response}}}}}' for response in responses]
    if not agent.plan.is_paddler:
        entry = f'{{"id":"{chosen.wire_id}","tokens":[1],"results":[{{"Shout":"x"}}]}}'
        named.append(f'{{"Trio":{{"Step":[{entry}]}}}}')
    return rng.choice(named)


def _unknown(rng: random.Random, *, is_paddler: bool) -> str:
    """An answer to a request that is over, or never was."""
    late = '{"Response":{"generated_by":null,"request_id":"%s","response":%s}}'
    frames = [
        late % ("1.9", '{"GeneratedToken":{"ContentToken":"late "}}'),
        late % ("query.99", '{"ModelMetadata":null}'),
        '{"Error":{"request_id":"x","error":{"code":500,"description":"y"}}}',
    ]
    if not is_paddler:
        frames += [
            '{"Trio":{"Step":[{"id":"7.7","tokens":[1],"results":[]}]}}',
            '{"Trio":{"HandBack":{"id":"7.7","reason":"late","engine_died":true}}}',
            '{"Trio":{"Tree":{"id":"query.99","tree":{}}}}',
        ]
    return rng.choice(frames)
