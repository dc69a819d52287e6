"""Hostile WebSockets: large frames on both sockets, and agents that lie."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from attack_call import Call, Pause, Port, dumps, frame, request, websocket
from attack_generation import structure_of
from attack_value import Attack, honest_call, prose, whole

INFERENCE_SOCKET = "/api/v1/inference_socket"
AGENT_SOCKET = "/api/v1/agent_socket/liar"
OURS = "paddler-trio.1"
STAY_S = 1.0
MAX_FLOOD_REQUESTS = 2000
"""Of one attack: an answer to each is owed, and the yardstick is a tenth as many by HTTP."""
ONLOOKERS: Sequence[tuple[Port, str]] = (
    ("inference", "/slots"),
    ("inference", "/props"),
    ("management", "/api/v1/agents"),
    ("management", "/api/v2/agents"),
    ("management", "/metrics"),
)
"""What somebody looks at while an agent lies."""


def _status(**changes: object) -> dict[str, object]:
    return {
        "desired_slots_total": 4,
        "download_current": 0,
        "download_filename": None,
        "download_indeterminate": True,
        "download_total": 0,
        "issues": [],
        "model_path": None,
        "slots_processing": 0,
        "slots_total": 0,
        "state_application_status": "Fresh",
        "uses_chat_template_override": False,
        "version": 0,
        **changes,
    }


def _update(**changes: object) -> bytes:
    told = {"UpdateAgentStatus": {"slot_aggregated_status_snapshot": _status(**changes)}}
    return frame(dumps({"Notification": told}))


def _raw_prompt(text: str, number: int = 0) -> bytes:
    prompt = {"ContinueFromRawPrompt": {"raw_prompt": text, "max_tokens": 4, "grammar": None}}
    return dumps({"Request": {"id": f"r{number}", "request": prompt}})


def lying(
    what: str,
    status: Mapping[str, object],
    frames: Sequence[bytes] = (),
    *,
    name: str = "liar",
    is_ours: bool = True,
) -> Attack:
    """An agent that registers with this status, sends these frames, and leaves after a second.

    ``is_ours``: it speaks what agents of this package do, beyond Paddler's.
    """
    snapshot = {"name": name, "slot_aggregated_status_snapshot": _status(**status)}
    registration = frame(dumps({"Notification": {"RegisterAgent": snapshot}}))
    usual = {"name": "new", "slot_aggregated_status_snapshot": _status()}
    honest = [frame(dumps({"Notification": {"RegisterAgent": usual}})), _update(version=1)]

    def calls_of(sent: Sequence[bytes]) -> list[Call]:
        steps = [*websocket(AGENT_SOCKET, sent, subprotocol=OURS if is_ours else "")]
        agent = Call(
            port="management", steps=steps, answers=0, leave_after_s=STAY_S, may_be_cut=True
        )
        looks = [
            Call(port=port, steps=[Pause(STAY_S / 2), request(path, method="GET")])
            for port, path in ONLOOKERS
        ]
        return [agent, *looks]

    return Attack(
        name=f"agent{' of ours' if is_ours else ''}: {what}",
        calls=lambda: calls_of([registration, *frames]),
        honest=lambda: calls_of(honest),
    )


def on_inference_socket(
    what: str,
    frames: Callable[[], Sequence[bytes]],
    size_bytes: int,
    *,
    leaves_s: float | None = None,
    honest_requests: int = 0,
) -> Attack:
    """Frames on an inference socket, and as a yardstick a prompt that is as long, by HTTP; or, if
    the frames are requests that deserve an answer, so many short ones."""

    def calls() -> list[Call]:
        steps = websocket(INFERENCE_SOCKET, frames())
        return [Call(steps=steps, answers=0, may_be_cut=True, leave_after_s=leaves_s)]

    def honest() -> list[Call]:
        if honest_requests:
            return [honest_call("/api/v2/generate", 200) for _ in range(honest_requests)]
        return [honest_call("/api/v2/generate", min(size_bytes, 30_000_000))]

    return Attack(name=f"inference socket: {what}", calls=calls, honest=honest)


def client_frames(dice: random.Random, scale: float) -> Attack:
    """A large frame on the inference socket: structure, text, fragments, or no JSON at all."""
    size_bytes = whole(dice, 500_000, 48_000_000, scale)
    kind = dice.choice(["structure", "structure", "text", "fragments", "unknown", "binary"])
    name, made = kind, b""
    if kind == "structure":
        name, made = structure_of(dice, size_bytes)
    elif kind == "fragments":
        size_bytes = min(size_bytes, 400_000)

    def frames() -> list[bytes]:
        if kind == "structure":
            return [frame(made)]
        if kind == "text":
            return [frame(_raw_prompt(prose(size_bytes)))]
        if kind == "fragments":
            text = _raw_prompt(prose(size_bytes))
            first = frame(text[:1], is_last=False)
            middle = [frame(bytes([b]), opcode=0, is_last=False) for b in text[1:-1]]
            return [b"".join([first, *middle, frame(text[-1:], opcode=0)])]
        if kind == "unknown":
            return [frame(b'{"Request":{"id":"r","request":{"Unknown":[' + b"[]," * 9 + b"1]}}}")]
        return [frame(bytes(size_bytes), opcode=2)]

    # what is no request is not answered: the client waits a second and leaves
    leaves_s = STAY_S if kind != "text" else None
    what = f"{name}, {size_bytes >> 10} KiB"
    return on_inference_socket(what, frames, size_bytes, leaves_s=leaves_s)


def client_floods(dice: random.Random, scale: float) -> Attack:
    """Very many small frames on one inference socket: requests, stops, pings, the same ids."""
    number = whole(dice, 500, 20_000, scale)
    kind = dice.choice(["requests", "stops", "pings", "same id", "bad"])
    honest_requests = 0
    if kind == "requests":
        number = min(number, MAX_FLOOD_REQUESTS)
        honest_requests = number // 10
        flood = [frame(_raw_prompt("a", n)) for n in range(number)]
    elif kind == "stops":
        stops = ({"Notification": {"StopRespondingTo": f"x{n}"}} for n in range(number))
        flood = [frame(dumps(stop)) for stop in stops]
    elif kind == "pings":
        flood = [frame(b"p" * 100, opcode=9)] * number
    elif kind == "same id":
        flood = [frame(_raw_prompt("a"))] * number
    else:
        flood = [frame(b'{"Request":{"id":"bad"}}')] * number
    together = b"".join(flood)
    what = f"{number} {kind}"
    return on_inference_socket(
        what,
        lambda: [together],
        len(together),
        leaves_s=2.0,
        honest_requests=honest_requests,
    )


def liars(dice: random.Random, scale: float) -> Attack:
    """An agent on the management port that says what no agent would."""
    number = whole(dice, 1000, 100_000, scale)
    kind = dice.choice(
        ["slots", "name", "issues", "floods", "variants", "steps", "frame", "path", "reports"]
    )
    is_ours = dice.random() < 0.5
    status: dict[str, object] = {}
    frames: list[bytes] = []
    name = "liar"
    if kind == "slots":
        status = {"slots_total": 2**31 - 1, "desired_slots_total": 2**31 - 1}
    elif kind == "name":
        name = "n" * number * 200
    elif kind == "issues":
        issues = [{"ModelFileDoesNotExist": {"model_path": f"/{n}"}} for n in range(number)]
        status = {"issues": issues}
    elif kind == "floods":
        floods = range(number // 10)
        frames = [b"".join(_update(version=n, download_current=n) for n in floods)]
    elif kind == "variants":
        frames = [frame(dumps({"Notification": {"Unheard": {"of": 1}}})) * 100]
        frames += [frame(b'{"Response":{"request_id":"x"}}')]
    elif kind == "steps":
        entry = {"id": "nobody", "tokens": [1], "results": [{"ContentToken": "a"}]}
        frames = [frame(dumps({"Trio": {"Step": [entry] * number}}))]
    elif kind == "frame":
        frames = [frame(structure_of(dice, number * 300)[1])]
    elif kind == "path":
        name, status = "\x00\n\x1b[2J", {"model_path": "/\x00" * number}
    else:
        report = {
            "phase": "serving",
            "wanted_state": None,
            "served_state": None,
            "model": None,
            "progress": 1.0,
            "detail": "d" * number,
            "engine": {"figure": [0] * number},
        }
        frames = [frame(dumps({"Trio": {"Report": report}}))]
    return lying(f"{kind} {number}", status, frames, name=name, is_ours=is_ours)
