"""Errors of the APIs: refusals, and answers that failed or broke off.

Everything that can go wrong becomes one value, :class:`ApiError`; each API writes it in its own
envelope. The statuses follow what the official clients do with them: 400, 401, 404, 413, 422 are
the sender's to correct, 429 and 503 are retried after ``Retry-After``, 504 took too long, 499 was
cancelled by an operator and is not retried. Overload is never a 500.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import attrs

from paddler_trio.errors import PaddlerError
from paddler_trio.net.server.asgi import Header, HttpProblem
from paddler_trio.nursery_tree.request_endings import Failure
from paddler_trio.nursery_tree.step_results import RawResult
from paddler_trio.scheduler.truth.request_truth import CANCELLED_CODE
from paddler_trio.wire.engine.sampler_stages import PARAMETERS
from paddler_trio.wire.paddler.raw_results import result_tag

INVALID = "invalid_request_error"

_OF_STATUS: Mapping[int, tuple[str, str | None]] = {
    400: (INVALID, "invalid_value"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_scope"),
    404: ("not_found_error", "not_found"),
    405: (INVALID, "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: (INVALID, "request_too_large"),
    415: (INVALID, "unsupported_media_type"),
    422: (INVALID, None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    CANCELLED_CODE: ("request_cancelled", "cancelled_by_operator"),
    501: ("not_supported_error", "not_supported"),
    502: ("server_error", "agent_lost"),
    503: ("overloaded_error", "overloaded"),
    504: ("timeout_error", "timeout"),
}
"""OpenAI's class of error, and the usual code."""
_PATH = re.compile(r"([a-z_]+)(?:\[\d+\]|\.[a-z_]+)*(:)?")
_OF_CONSTRAINTS = frozenset({"invalid_grammar", "grammar_with_thinking", "grammar_unsatisfiable"})
_PROMPT_ERRORS = ("the prompt is empty", "cannot continue:")
"""How agents' errors about the prompt itself begin; Paddler's protocol has no result for them."""
_PROMPT_TOO_LONG = re.compile(
    r"the prompt has (at least )?(\d+) tokens, but one slot of this agent holds (\d+)"
)


@attrs.frozen
class _Meaning:
    """The error of a result that ends a stream without an answer."""

    status: int
    code: str
    param: str | None = None


_OWN_NAMES = {
    **{each.name: each.server_name for each in PARAMETERS.values()},
    "logprobs": "top_logprobs",
    "max_reasoning_tokens": "reasoning_budget_tokens",
    "thinking": "enable_thinking",
    "tool_name": "tool_choice",
    "constraint": "response_format",
    "template_kwargs": "chat_template_kwargs",
    "text": "prompt",
    "tokens": "prompt",
}
"""Native fields that have another name in the APIs."""

_MEANINGS: Mapping[str, _Meaning] = {
    "BadRequest": _Meaning(400, "invalid_value"),
    "ChatTemplateError": _Meaning(400, "chat_template_error", "messages"),
    "DetokenizationFailed": _Meaning(500, "detokenization_failed"),
    "GrammarIncompatibleWithThinking": _Meaning(400, "grammar_with_thinking"),
    "GrammarInitializationFailed": _Meaning(400, "invalid_grammar"),
    "GrammarRejectedModelOutput": _Meaning(422, "grammar_unsatisfiable"),
    "GrammarSyntaxError": _Meaning(400, "invalid_grammar"),
    "ImageDecodingFailed": _Meaning(400, "invalid_image", "messages"),
    "ImageExceedsBatchSize": _Meaning(400, "image_too_large", "messages"),
    "InfillNotSupported": _Meaning(501, "infill_not_supported"),
    "MultimodalNotSupported": _Meaning(400, "images_not_supported", "messages"),
    "SamplerError": _Meaning(500, "generation_failed"),
    "TokenGenerationDisabled": _Meaning(501, "generation_disabled"),
    "ToolSchemaInvalid": _Meaning(400, "invalid_tool_schema", "tools"),
    "EmbeddingsDisabled": _Meaning(501, "embeddings_disabled"),
    "EmbeddingRejectedDueToActiveTokenGeneration": _Meaning(503, "overloaded"),
    "NoEmbeddingsProduced": _Meaning(500, "no_embeddings"),
    "Error": _Meaning(500, "embedding_failed"),
}


class ApiError(PaddlerError):
    """A refusal or failure, whatever the API.

    Args:
      status: of the response, if it has not begun.
      message: a sentence that names the field, the value and the limit.
      param: the path of the wrong field, such as ``messages[2].content``.
      code: an identifier for programs; by default it follows from the status.
      type: OpenAI's class of error; by default it follows from the status.
      details: further members of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,  # noqa: A002  # as in the envelope
        headers: Iterable[Header] = (),
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message
        self.param = param
        usual_type, usual_code = _OF_STATUS.get(status, ("server_error", None))
        self.code = usual_code if code is None else code
        self.type = usual_type if type is None else type
        self.headers = tuple(headers)
        self.details = dict(details or {})

    def envelope(self, *, with_details: bool = True) -> dict[str, object]:
        """OpenAI's: ``{"error": {"message", "type", "param", "code"}}``, and ``details``."""
        error: dict[str, object] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error | self.details if with_details else error}


def invalid(message: str, param: str | None, *, code: str = "invalid_value") -> ApiError:
    """Return ApiError 400 for the field ``param``."""
    return ApiError(400, message, param=param, code=code)


@contextmanager
def naming_fields(*, prompt: str, constraint: str | None) -> Iterator[None]:
    """Errors of agents raised inside get the names of this request's fields."""
    try:
        yield
    except ApiError as error:
        if error.code == "context_length_exceeded":
            error.param = prompt
        elif error.code in _OF_CONSTRAINTS:
            error.param = constraint
        elif error.param is not None and error.param.startswith("messages"):
            error.param = error.param if prompt == "messages" else prompt
        raise


def renamed(sentence: str, native: str, own: str) -> str:
    """Return an agent's ``sentence`` about its field ``native``, about the client's ``own``
    instead."""
    rest = sentence.removeprefix(native)
    return f"{own}: {sentence}" if rest == sentence else own + rest


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error for a known field that this server cannot honour."""
    return ApiError(
        400, f"{param} is not supported: {reason}", param=param, code="unsupported_parameter"
    )


def from_problem(problem: HttpProblem) -> ApiError:
    """Return the error for a refusal by a shared part of the balancer."""
    return ApiError(problem.status, problem.text or "refused", headers=problem.headers)


def from_failure(failure: Failure, advice: Iterable[Header]) -> ApiError:
    """Return the error for a request that no agent ended, with ``advice`` on when to try again.

    What an operator cancelled is not to be sent again: the libraries of OpenAI and Anthropic read
    the second field, others the status.
    """
    headers = [*advice]
    if failure.code == CANCELLED_CODE:
        headers = [(b"x-should-retry", b"false")]
    return ApiError(failure.code, failure.description, headers=headers)


def prompt_too_long(
    num_prompt_tokens: int, num_cells: int, *, param: str = "messages", is_least: bool = False
) -> ApiError:
    """Return the error for a prompt that does not fit a slot of ``num_cells``.

    ``is_least``: it has at least these tokens.
    """
    least = "at least " if is_least else ""
    return ApiError(
        400,
        f"the prompt has {least}{num_prompt_tokens} tokens, which exceeds the available context "
        f"size of {num_cells} tokens in one slot; shorten it, or have context_size raised or "
        "fewer slots used",
        type="exceed_context_size_error",
        code="context_length_exceeded",
        param=param,
        details={"n_prompt_tokens": num_prompt_tokens, "n_ctx": num_cells},
    )


def from_result(result: RawResult) -> ApiError | None:
    """Return the error of an ending result; None for ``Done`` and for results that end nothing."""
    tag = result_tag(result)
    meaning = _MEANINGS.get(tag)
    if meaning is None:
        return None
    value = result[tag] if isinstance(result, Mapping) else tag
    param = meaning.param
    match value:
        case str(text):
            pass
        case {"field": str(field), "message": str(text)}:
            param = _own_name(field)
        case _:
            text = f"{tag}: {value}"
    too_long = _PROMPT_TOO_LONG.search(text)
    if too_long is not None:
        return prompt_too_long(int(too_long[2]), int(too_long[3]), is_least=bool(too_long[1]))
    if tag == "ChatTemplateError":
        param = _field_at_fault(text) or param
    if tag == "MultimodalNotSupported":
        part = _field_at_fault(text)
        if part is not None:
            return ApiError(meaning.status, text, param=part, code="unsupported_parameter")
        text = f"image input is not supported: {text}"
    if tag == "SamplerError" and text.startswith(_PROMPT_ERRORS):
        return invalid(text, "prompt")
    return ApiError(meaning.status, text, param=param, code=meaning.code)


def _field_at_fault(text: str) -> str | None:
    """Return the field that a message begins with, such as ``messages[1].role: …``; None if
    none."""
    match = _PATH.match(text)
    return _own_name(match[0].removesuffix(":")) if match is not None and match[2] else None


def _own_name(field: str) -> str:
    """Return a native field's path, under the name that it has in the APIs."""
    for prefix in ("prompt.", "sampling."):
        field = field.removeprefix(prefix)
    match = _PATH.match(field)
    if match is None:
        return field
    name = match[1]
    return _OWN_NAMES.get(name, name) + field[len(name) :]
