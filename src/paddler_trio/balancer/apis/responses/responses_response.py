"""Results as a response: its output item by item, the object around it, and the events of both.

Pure. One object makes both the whole answer and the stream, so they cannot differ: a whole answer
is the items of a stream whose events are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from paddler_trio.balancer.apis.answers.answer import (
    Ended,
    Step,
    completion_tokens,
)
from paddler_trio.balancer.apis.answers.kept_logprobs import MANY_NUMBERS
from paddler_trio.balancer.apis.answers.timings import Stopwatch, timings_of
from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.fields import object_in
from paddler_trio.balancer.apis.responses.response_output import GROWING, Output, new_id
from paddler_trio.balancer.apis.responses.responses_request import ResponsesRequest
from paddler_trio.balancer.apis.shapes import Json
from paddler_trio.net.server import streaming
from paddler_trio.wire.json_text import dumps_in_runs
from paddler_trio.wire.paddler.raw_results import result_tag

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


@attrs.define(kw_only=True)
class ResponseHeading:
    """Hold what is decided before the answer. Times are seconds since 1970.

    ``parameters`` are the cluster's, for fields that the request leaves out.
    """

    request: ResponsesRequest
    model: str
    created: int
    parameters: Mapping[str, object] = attrs.field(factory=dict)
    id: str = attrs.field(factory=lambda: new_id("resp_"))

    def named(self) -> Json:
        """Return what tells which response it is, for events that say nothing new of the rest.

        The rest is as long as the client made it (instructions, tools, a schema), and events of
        progress come twice a second for as long as the prompt takes.
        """
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress",
            "model": self.model,
            "output": [],
        }

    def body(self, status: str, output: Output, **more: object) -> Json:
        """Return the response object as it is now."""
        values = self.request.values
        echoed = {name: values.get(name, usual) for name, usual in _ECHOED.items()}
        for name in ("temperature", "top_p"):
            if echoed[name] is None:
                echoed[name] = self.parameters.get(name)
        reasoning, text = object_in(values, "reasoning"), object_in(values, "text")
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
                "summary": self.request.summary,
            },
            **({} if self.request.delivery.is_exact else {"store": self.request.is_stored}),
            "text": {"format": text.get("format", {"type": "text"}), "verbosity": "medium"},
            "tools": _shown_tools(values.get("tools", [])),
            **more,
        }

    def finished(self, output: Output, *, now: int) -> Json:
        """Return the whole of it, once it has ended."""
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
    return [{**usual, **tool} if tool["type"] == "function" else tool for tool in tools]


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
    """A ``StreamEncoder``: events in order, numbered without a gap.

    Args:
      finish: makes the finished response of the output, and stores it if the request asks for it.
      watch: for timings, where the request asks for them.
    """

    heading: ResponseHeading
    output: Output
    finish: Callable[[], Json]
    watch: Stopwatch
    is_large: bool = False
    """The request is: the first events and the last are long, which repeat much of it."""
    _number: int = attrs.field(default=0, init=False)

    def is_long(self, steps: Sequence[Step]) -> bool:
        """Return whether events of these steps, or without any that of the whole response, have
        very much in them: an item that ends is repeated whole, with what is known of each of its
        tokens."""
        output = self.output
        if not steps:
            return self.is_large or output.num_logprobs > MANY_NUMBERS
        if not output.is_newest_long:
            return False
        tags = {result_tag(result) for step in steps for result in step.results}
        return not tags <= GROWING

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
            event["response"] = self.heading.named()
        elif self.heading.request.delivery.with_timings and "delta" in event:
            timings = self.watch.timings()
            event |= {} if timings is None else {"timings": timings}
        return self._event(event)

    def closing(self) -> bytes:
        response, ended = self.finish(), self.output.ended
        event: Json = {"type": f"response.{response['status']}", "response": response}
        if self.heading.request.delivery.with_timings and ended is not None:
            event["timings"] = timings_of(ended)
        return self._event(event)

    def failed(self, error: ApiError) -> bytes:
        """OpenAI's flat members, and the envelope that makes its clients raise it."""
        flat: Json = {"code": error.code, "message": error.message, "param": error.param}
        more = {} if self.heading.request.delivery.is_exact else error.envelope()
        return self._event({"type": "error", **flat, **more})

    def _event(self, event: Json) -> bytes:
        kind = event.pop("type")
        numbered = {"type": kind, "sequence_number": self._number, **event}
        self._number += 1
        if "delta" in event:
            return streaming.event(numbered, name=str(kind))
        # in a thread the event loop has its turn between two runs
        return b"event: %b\n" % str(kind).encode() + streaming.data_event(dumps_in_runs(numbered))
