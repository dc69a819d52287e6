"""Hostile WebSockets: large frames on both sockets, and agents that lie."""

from __future__ import annotations

import random

from attack_call import Call, Pause, Step, dumps, frame, websocket
from attack_generation import structure_of
from attack_value import Attack, prose, whole

INFERENCE_SOCKET = "/api/v1/inference_socket"
AGENT_SOCKET = "/api/v1/agent_socket/liar"
OURS = "paddler-trio.1"


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


def _register(name: str | None, **changes: object) -> bytes:
    snapshot = {"name": name, "slot_aggregated_status_snapshot": _status(**changes)}
    return frame(dumps({"Notification": {"RegisterAgent": snapshot}}))


def _update(**changes: object) -> bytes:
    told = {"UpdateAgentStatus": {"slot_aggregated_status_snapshot": _status(**changes)}}
    return frame(dumps({"Notification": told}))


def _raw_prompt(text: str, number: int = 0) -> bytes:
    prompt = {"ContinueFromRawPrompt": {"raw_prompt": text, "max_tokens": 4, "grammar": None}}
    return dumps({"Request": {"id": f"r{number}", "request": prompt}})


def client_frames(dice: random.Random, scale: float) -> Attack:
    """A large frame on the inference socket: structure, text, fragments, or no JSON at all."""
    size_bytes = whole(dice, 500_000, 48_000_000, scale)
    kind = dice.choice(["structure", "text", "fragments", "unknown", "binary"])
    name, made = kind, b""
    if kind == "structure":
        name, made = structure_of(dice, size_bytes)

    def frames() -> list[bytes]:
        if kind == "structure":
            return [frame(made)]
        if kind == "text":
            return [frame(_raw_prompt(prose(size_bytes)))]
        if kind == "fragments":
            text = _raw_prompt(prose(min(size_bytes, 400_000)))
            first = frame(text[:1], is_last=False)
            middle = [frame(bytes([b]), opcode=0, is_last=False) for b in text[1:-1]]
            return [first, *middle, frame(text[-1:], opcode=0)]
        if kind == "unknown":
            return [frame(b'{"Request":{"id":"r","request":{"Unknown":' + b"[]," * 9 + b"1}}}")]
        return [frame(bytes(size_bytes), opcode=2)]

    return _socket(f"{name}, {size_bytes >> 10} KiB", INFERENCE_SOCKET, frames, "", size_bytes)


def client_floods(dice: random.Random, scale: float) -> Attack:
    """Very many small frames on one inference socket: requests, stops, pings, the same ids."""
    number = whole(dice, 500, 20_000, scale)
    kind = dice.choice(["requests", "stops", "pings", "same id", "bad"])
    if kind == "requests":
        flood = [frame(_raw_prompt("a", n)) for n in range(number)]
    elif kind == "stops":
        flood = [
            frame(dumps({"Notification": {"StopRespondingTo": f"x{n}"}})) for n in range(number)
        ]
    elif kind == "pings":
        flood = [frame(b"p" * 100, opcode=9)] * number
    elif kind == "same id":
        flood = [frame(_raw_prompt("a"))] * number
    else:
        flood = [frame(b'{"Request":{"id":"bad"}}')] * number
    together = b"".join(flood)
    return _socket(
        f"{number} {kind}", INFERENCE_SOCKET, lambda: [together], "", len(together), leaves_s=2.0
    )


def liars(dice: random.Random, scale: float) -> Attack:
    """An agent on the management port that says what no agent would."""
    number = whole(dice, 1000, 100_000, scale)
    kind = dice.choice(
        ["slots", "name", "issues", "floods", "variants", "steps", "frame", "path", "reports"]
    )
    ours = dice.choice(["", OURS])
    name = f"agent: {kind} {number}"

    def frames() -> list[Step]:
        if kind == "slots":
            return [_register("liar", slots_total=2**31 - 1, desired_slots_total=2**31 - 1)]
        if kind == "name":
            return [_register("n" * number * 200)]
        if kind == "issues":
            issues = [{"ModelFileDoesNotExist": {"model_path": f"/{n}"}} for n in range(number)]
            return [_register("liar", issues=issues)]
        if kind == "floods":
            updates = b"".join(_update(version=n, download_current=n) for n in range(number // 10))
            return [_register("liar"), updates]
        if kind == "variants":
            unknown = frame(dumps({"Notification": {"Unheard": {"of": 1}}}))
            return [_register("liar"), unknown * 100, frame(b'{"Response":{"request_id":"x"}}')]
        if kind == "steps":
            entry = {"id": "nobody", "tokens": [1], "results": [{"ContentToken": "a"}]}
            return [_register("liar"), frame(dumps({"Trio": {"Step": [entry] * number}}))]
        if kind == "frame":
            return [_register("liar"), frame(structure_of(dice, number * 300)[1])]
        if kind == "path":
            return [_register("\x00\n\x1b[2J", model_path="/\x00" * number)]
        engine = {"figure": [0] * number}
        report = {"Report": {"phase": "serving", "wanted_state": None, "served_state": None}}
        report["Report"] |= {"model": None, "progress": 1.0, "detail": "d" * number}  # type: ignore[dict-item]
        report["Report"]["engine"] = engine  # type: ignore[assignment]
        return [_register("liar"), frame(dumps({"Trio": report}))]

    def calls() -> list[Call]:
        steps = [*websocket(AGENT_SOCKET, (), subprotocol=ours), *frames(), Pause(0.2)]
        agent = Call(port="management", steps=steps, answers=0, leave_after_s=0.8, may_be_cut=True)
        return [agent, *_onlookers()]

    def honest() -> list[Call]:
        steps = websocket(AGENT_SOCKET, (), subprotocol=ours)
        steps += [_register("new"), *(_update(version=n) for n in range(5)), Pause(0.2)]
        agent = Call(port="management", steps=steps, answers=0, leave_after_s=0.8, may_be_cut=True)
        return [agent, *_onlookers()]

    return Attack(name=f"{name}{', ours' if ours else ''}", calls=calls, honest=honest)


def _onlookers() -> list[Call]:
    """Clients that look at the agents while one of them lies."""
    from attack_call import request

    pages = [("inference", "/slots"), ("inference", "/props"), ("management", "/api/v1/agents")]
    pages += [("management", "/metrics"), ("management", "/api/v2/agents")]
    return [
        Call(port=port, steps=[Pause(0.5), request(path, method="GET")])  # type: ignore[arg-type]
        for port, path in pages
    ]


def _socket(
    name: str,
    path: str,
    frames: object,
    subprotocol: str,
    size_bytes: int,
    *,
    leaves_s: float | None = None,
) -> Attack:
    """Frames on an inference socket, and as a yardstick a prompt that is as long, by HTTP."""
    from attack_value import honest_call

    def calls() -> list[Call]:
        steps = websocket(path, frames(), subprotocol=subprotocol)  # type: ignore[operator]
        return [Call(steps=steps, answers=0, may_be_cut=True, leave_after_s=leaves_s)]

    def honest() -> list[Call]:
        return [honest_call("/api/v2/generate", min(size_bytes, 30_000_000))]

    return Attack(name=f"inference socket: {name}", calls=calls, honest=honest)
