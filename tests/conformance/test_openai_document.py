"""``/openapi.json`` says what the surface does: schemathesis holds it to its word."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fleet import Fleet
from hypothesis import HealthCheck, Phase, given, settings

from effort import examples

EXAMPLES = examples(20)
"""For each operation; the point is agreement, not stress."""

OPERATIONS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/chat/completions/input_tokens"),
    ("POST", "/v1/completions"),
    ("POST", "/completion"),
    ("POST", "/v1/embeddings"),
    ("POST", "/embedding"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/rerank"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("POST", "/api/show"),
    ("POST", "/api/pull"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("GET", "/v1/health"),
    ("GET", "/v1/models"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/lora-adapters"),
]
MAY_BE_LONG = {"max_tokens", "max_completion_tokens", "n_predict", "n", "n_cmpl", "best_of"}


AS_JSON = {"content-type": "application/json"}


def brief(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same, but quickly answered."""
    body = {key: value for key, value in body.items() if key not in MAY_BE_LONG}
    if "count" in path or "input_tokens" in path:
        return body
    if path == "/v1/responses":
        return {**body, "max_output_tokens": 2}
    if path in ("/api/chat", "/api/generate"):
        given = body.get("options")
        options = given if isinstance(given, dict) else {}
        return {**body, "options": {**options, "num_predict": 2}}
    is_generated = "completion" in path or path == "/v1/messages"
    return body | {"max_tokens": 2} if is_generated else body


def written_out(body: Any) -> bytes:
    """A body as bytes; what is none at all is an empty one."""
    if isinstance(body, bytes):
        return body
    from schemathesis.core import NotSet

    return b"" if isinstance(body, NotSet) else json.dumps(body).encode()


@pytest.fixture(scope="module")
def document(fleet: Fleet) -> Any:
    answer = httpx.get(f"{fleet.inference_url}/openapi.json", trust_env=False, timeout=60)
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture(scope="module")
def schema(document: Any) -> Any:
    import schemathesis  # slow: not while tests are collected
    from schemathesis.config import SchemathesisConfig

    return schemathesis.openapi.from_dict(document, config=SchemathesisConfig())


def test_every_operation_is_tried(document: Any) -> None:
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert set(OPERATIONS) <= described


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (method, path, mode)
        for method, path in OPERATIONS
        for mode in (("positive", "negative") if method == "POST" else ("positive",))
    ],
)
def test_an_operation_does_what_is_written(
    fleet: Fleet, document: Any, schema: Any, method: str, path: str, mode: str
) -> None:
    import schemathesis  # slow: not while tests are collected

    operation = schema[path][method]
    wanted = getattr(schemathesis.GenerationMode, mode.upper())

    with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=wanted))
        def holds(case: Any) -> None:
            body = case.body
            if mode == "positive" and isinstance(body, dict):
                body = brief(path, body)
            answer = http.request(method, path, content=written_out(body), headers=AS_JSON)
            assert answer.status_code < 500 or answer.status_code == 501, answer.text
            if mode == "negative":
                assert answer.status_code != 200, answer.text
            assert answer.headers["x-request-id"]
            written = document["paths"][path][method.lower()]["responses"]
            assert str(answer.status_code) in written
            kind = answer.headers["content-type"].partition(";")[0]
            if answer.status_code == 200:
                assert kind in written["200"]["content"]
            else:
                error = answer.json()["error"]
                if path.startswith("/api/"):
                    assert error, "it is a text"
                    return
                theirs = path.startswith("/v1/messages")
                members = {"message", "type"} if theirs else {"message", "type", "param", "code"}
                assert members <= set(error)

        holds()
