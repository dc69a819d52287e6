"""The bundled model's own evaluation, asked through the real listeners of a real fleet.

What passed when the model was made must pass here: template, tokenising, sampling, classes and
tool calls all have to be right for that. Another CPU rounds otherwise, and then a greedy tie may
fall the other way, so a few of the cases are allowed to differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import attrs
import httpx
import trio
from fleet import Fleet

from paddler_trio.processes.engine.proof import BUNDLED_MODEL

Json: TypeAlias = Any  # the cases and the answers are looked into freely

EVALUATION = Path(__file__).parents[2] / "tools" / "demo_model" / "evaluation.json"
GREEDY = {
    "temperature": 0.0,
    "penalty_repeat": 1.0,
    "penalty_frequency": 0.0,
    "penalty_presence": 0.0,
    "k_cache_dtype": "F16",
    "v_cache_dtype": "F16",
}
AT_ONCE = 8
MAX_TOKENS = 700
PASSING_SHARE = 0.95
PATIENCE_S = 60.0


class Case(TypedDict, total=False):
    id: str
    thinking: bool
    raw: bool
    messages: list[dict[str, Json]]
    tools: list[dict[str, Json]]
    check: dict[str, Json]
    passed: bool


CASES: list[Case] = json.loads(EVALUATION.read_text(encoding="utf-8"))["cases"]
PASSED = [case for case in CASES if case["passed"]]


@attrs.define
class Answer:
    """What a client makes of the events of one generation."""

    reasoning: str = ""
    content: str = ""
    calls: list[Json] = attrs.field(factory=list)
    ending: str = ""
    completion_tokens: int = 0

    def take(self, result: dict[str, Json]) -> None:
        ((tag, value),) = result.items()
        match tag:
            case "ReasoningToken":
                self.reasoning += value
            case "ContentToken" | "UndeterminableToken":
                self.content += value
            case "ToolCallParsed":
                self.calls += value
            case "ToolCallToken":
                pass
            case "Done":
                self.ending = tag
                usage = value["usage"]
                kinds = ("content", "reasoning", "tool_call", "undeterminable")
                self.completion_tokens = sum(usage[f"{kind}_tokens"] for kind in kinds)
            case _:
                self.ending = f"{tag}: {value}"


def fulfils(answer: Answer, check: dict[str, Json], *, thinking: bool) -> bool:
    """Whether an answer is right: what the evaluation asks of a text, asked of events."""
    if answer.ending != "Done" or answer.completion_tokens >= MAX_TOKENS:
        return False
    if bool(answer.reasoning.strip()) != thinking:
        return False
    if "tool_calls" in check:
        calls = [
            {"name": call["name"], "arguments": call["arguments"].get("ValidJson")}
            for call in answer.calls
        ]
        return calls == check["tool_calls"] and not answer.content.strip()
    if answer.calls:
        return False
    text = answer.content.removeprefix("\n\n") if thinking else answer.content
    if "exact" in check and text != check["exact"]:
        return False
    if "json" in check and _json(text) != check["json"]:
        return False
    if len(text) < check.get("min_chars", 0):
        return False
    return all(part.lower() in text.lower() for part in check.get("contains", []))


def _json(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return None


def as_native(message: dict[str, Json]) -> dict[str, Json]:
    """The native API knows roles and contents only: a call is told in the model's own words."""
    content = message["content"]
    for call in message.get("tool_calls", []):
        function = call["function"]
        name = json.dumps(function["name"])
        said = f'{{"name": {name}, "arguments": {function["arguments"]}}}'
        content += f"<tool_call>\n{said}\n</tool_call>"
    return {"role": message["role"], "content": content}


async def ask(http: httpx.AsyncClient, url: str, case: Case) -> Answer:
    """Ask one case as an application would."""
    if case.get("raw"):
        path = "continue_from_raw_prompt"
        body: Json = {"raw_prompt": case["messages"][-1]["content"], "max_tokens": MAX_TOKENS}
    else:
        path = "continue_from_conversation_history"
        body = {
            "add_generation_prompt": True,
            "conversation_history": [as_native(message) for message in case["messages"]],
            "enable_thinking": case["thinking"],
            "max_tokens": MAX_TOKENS,
            "tools": case.get("tools", []),
            "parse_tool_calls": bool(case.get("tools")),
        }
    response = await http.post(f"{url}/api/v1/{path}", json=body)
    assert response.status_code == 200, f"{case['id']}: {response.text}"
    answer = Answer()
    for line in response.text.splitlines():
        message = json.loads(line)
        if "Error" in message:
            answer.ending = str(message["Error"]["error"])
        else:
            answer.take(message["Response"]["response"]["GeneratedToken"])
    return answer


async def test_the_model_answers_through_our_routes_what_it_answered_when_it_was_made(
    fleet: Fleet,
) -> None:
    fleet.desire(BUNDLED_MODEL, context_size=8192, **GREEDY)
    fleet.wait_serving()
    waiting = iter(PASSED)
    wrong: dict[str, Answer] = {}

    async def ask_on(http: httpx.AsyncClient) -> None:
        for case in waiting:
            answer = await ask(http, fleet.inference_url, case)
            if not fulfils(answer, case["check"], thinking=case["thinking"]):
                wrong[case["id"]] = answer

    async with (
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http,
        trio.open_nursery() as nursery,
    ):
        for _ in range(AT_ONCE):
            nursery.start_soon(ask_on, http)

    for case_id, answer in sorted(wrong.items()):
        print(f"{case_id}: {answer}")
    assert len(wrong) <= (1 - PASSING_SHARE) * len(PASSED), f"wrong: {sorted(wrong)}"
