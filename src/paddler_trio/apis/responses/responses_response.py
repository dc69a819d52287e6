"""The response object around the output, and the stream of its events: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from paddler_trio.apis.answer import Ended, Stopwatch, completion_tokens, timings_of
from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.responses.responses_output import Output, new_id
from paddler_trio.apis.responses.responses_request import ResponsesRequest
from paddler_trio.apis.steps import Step
from paddler_trio.http import sse

Json = dict[str, object]

_ECHOED: Mapping[str, object] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "service_tier": "default",
    "temperature": None,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
}
"""The fields of a request that its response repeats, and their values by default."""
_LABELS = ("prompt_cache_key", "safety_identifier", "user")
"""Fields that it repeats if the request has them: all are texts."""


@attrs.frozen(kw_only=True)
class ResponseHeading:
    """What is decided before the answer. Times are seconds since 1970.

    ``parameters`` are the cluster's, for fields that the request leaves out. ``is_exact``: the
    response has nothing that OpenAI's own schema does not have.
    """

    request: ResponsesRequest
    model: str
    created: int
    parameters: Mapping[str, object] = attrs.field(factory=dict)
    is_exact: bool = False
    id: str = attrs.field(factory=lambda: new_id("resp_"))

    def body(self, status: str, output: Output, **more: object) -> Json:
        """The response object as it is now."""
        values = self.request.values
        echoed = {name: values.get(name, usual) for name, usual in _ECHOED.items()}
        for name in ("temperature", "top_p"):
            if echoed[name] is None:
                echoed[name] = self.parameters.get(name)
        reasoning, text = values.get("reasoning", {}), values.get("text", {})
        assert isinstance(reasoning, Mapping)
        assert isinstance(text, Mapping)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": output.items if status != "in_progress" else [],
            **echoed,
            **{name: values[name] for name in _LABELS if name in values},
            "service_tier": "default",
            "reasoning": {
                "effort": reasoning.get("effort"),
                "summary": reasoning.get("summary", reasoning.get("generate_summary")),
            },
            **({} if self.is_exact else {"store": self.request.is_stored}),
            "text": {"format": text.get("format", {"type": "text"}), "verbosity": "medium"},
            "tools": _shown_tools(values.get("tools", [])),
            **more,
        }

    def finished(self, output: Output, *, now: int) -> Json:
        """The whole of it, once it has ended."""
        ended = output.ended
        assert ended is not None
        usage = usage_of(ended)
        if ended.finish_reason == "length":
            details = {"reason": "max_output_tokens"}
            return self.body("incomplete", output, incomplete_details=details, usage=usage)
        return self.body("completed", output, completed_at=now, usage=usage)


def _shown_tools(tools: object) -> list[Json]:
    assert isinstance(tools, list)
    usual = {"description": None, "parameters": None, "strict": False}
    return [{**usual, **tool} for tool in tools]


def usage_of(ended: Ended) -> Json:
    prompt, written = ended.usage["prompt_tokens"], completion_tokens(ended)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": ended.usage.get("cached_prompt_tokens", 0),
            "cache_write_tokens": 0,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": ended.usage.get("reasoning_tokens", 0)},
        "total_tokens": prompt + written,
    }


@attrs.define
class ResponseStream:
    """A :class:`~paddler_trio.apis.steps.StreamEncoder`: events in order, numbered without a gap.

    Args:
      finish: makes the finished response of the output, and stores it if the request asks for it.
      watch: for timings, where the request asks for them.
    """

    heading: ResponseHeading
    output: Output
    finish: Callable[[], Json]
    watch: Stopwatch
    _number: int = attrs.field(default=0, init=False)

    def opening(self) -> bytes:
        response = self.heading.body("in_progress", self.output)
        return b"".join(
            self._event({"type": f"response.{kind}", "response": response})
            for kind in ("created", "in_progress")
        )

    def take(self, step: Step) -> bytes:
        self.watch.passed(len(step.tokens))
        return b"".join(self._completed(event) for event in self.output.take(step.results))

    def _completed(self, event: Json) -> bytes:
        if event["type"] == "response.in_progress":
            event["response"] = self.heading.body("in_progress", self.output)
        elif self.heading.request.with_timings and "delta" in event:
            timings = self.watch.timings()
            event |= {} if timings is None else {"timings": timings}
        return self._event(event)

    def closing(self) -> bytes:
        response = self.finish()
        ended, more = self.output.ended, dict[str, object]()
        if self.heading.request.with_timings and ended is not None:
            more["timings"] = timings_of(ended)
        kind = f"response.{response['status']}"
        return self._event({"type": kind, "response": response, **more})

    def failed(self, error: ApiError) -> bytes:
        """OpenAI's flat members, and the envelope that makes its clients raise it."""
        flat: Json = {"code": error.code, "message": error.message, "param": error.param}
        more = {} if self.heading.is_exact else error.envelope()
        return self._event({"type": "error", **flat, **more})

    def _event(self, event: Json) -> bytes:
        kind = event.pop("type")
        numbered = {"type": kind, "sequence_number": self._number, **event}
        self._number += 1
        return sse.event(numbered, name=str(kind))
