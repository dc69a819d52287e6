"""llama-server's ``/infill``: a completion of what stands between two texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import attrs

from paddler_trio.balancer.apis.api_exchange import ApiExchange
from paddler_trio.balancer.apis.backend import Backend, must_generate
from paddler_trio.balancer.apis.fields import Field, Record, list_in, record, required
from paddler_trio.balancer.apis.ignored_fields import STRICT, IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.llama_completion import answer_completion
from paddler_trio.balancer.apis.openai.completion_request import (
    CompletionRequest,
    completion_of,
    llama_fields,
)
from paddler_trio.balancer.apis.prompts import Prompts
from paddler_trio.balancer.apis.questions import rendered
from paddler_trio.balancer.apis.shapes import ListOf, Text
from paddler_trio.wire.trio.presets import Preset
from paddler_trio.wire.trio.work import InfillPrompt, OtherText

MAX_EXTRAS = 1024


@lru_cache(maxsize=8)
def infill_record(limits: ApiLimits) -> Record:
    """Return the body of ``/infill``."""
    extra = record(
        "InfillExtra",
        required("text", Text(), "A text that the answer may depend on."),
        Field("filename", Text(4096), "Where it stands; tmp if absent."),
    )
    return record(
        "LlamaInfillRequest",
        required("input_prefix", Text(), "The text before the gap; its end is kept."),
        required("input_suffix", Text(), "The text behind the gap; its beginning is kept."),
        Field(
            "input_extra",
            ListOf(extra, 0, MAX_EXTRAS),
            "Texts from elsewhere; the last ones are kept.",
        ),
        Field("prompt", Text(), "What the answer goes on after, behind the token of the middle."),
        *llama_fields(limits),
        note="Fills the gap between two texts, for a model that was trained to. What is too long "
        "is cut; no text becomes a control token. Unknown fields are ignored and reported.",
    )


@attrs.frozen
class InfillRequest:
    """``completion`` is all of it but the prompt."""

    completion: CompletionRequest
    prompt: InfillPrompt

    def under(self, preset: Preset, ignored: IgnoredFields) -> InfillRequest:
        """Return it as the preset makes it."""
        return attrs.evolve(self, completion=self.completion.under(preset, ignored))

    @property
    def shows_prompt(self) -> bool:
        """Return what the prompt became is part of the answer."""
        names = self.completion.response_fields
        return not names or "prompt" in names


def read_infill(body: object, limits: ApiLimits, ignored: IgnoredFields = STRICT) -> InfillRequest:
    """Read the request; ApiError 400, with the path of the field in ``param``, for what cannot be
    honoured."""
    values = infill_record(limits).read(body, "", ignored)
    one = Prompts(("",), is_several=False)
    return InfillRequest(completion_of(values, one, limits, ignored), _prompt(values))


def _prompt(values: Mapping[str, object]) -> InfillPrompt:
    return InfillPrompt(
        prefix=str(values["input_prefix"]),
        suffix=str(values["input_suffix"]),
        middle=str(values.get("prompt", "")),
        others=tuple(OtherText(**extra) for extra in list_in(values, "input_extra")),
    )


async def infill(backend: Backend, exchange: ApiExchange) -> None:
    """The agent lays out the prompt; one is asked for its text, unless nobody wants to see it."""
    request = await exchange.read(backend.limits, read_infill)
    backend = backend.routed(exchange, request.completion.delivery.model)
    must_generate(backend)
    shown = ""
    if request.shows_prompt:
        shown = str((await rendered(backend, exchange, request.prompt))["prompt"])
    await answer_completion(
        backend,
        exchange,
        request.completion,
        request.completion.works([request.prompt]),
        [shown],
        prompt_field="input_prefix",
    )
