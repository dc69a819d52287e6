"""Which requests take a slot of a server, and which slot they mean."""

from __future__ import annotations

import pytest

from paddler_trio.balancer.reverse_proxy.slot_paths import slot_of, takes_slot


@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("POST", "/v1/chat/completions", True),
        ("POST", "/completion", True),
        ("POST", "/infill", True),
        ("POST", "/predict", True),
        ("POST", "/api/chat", True),
        ("POST", "/api/v0/chat/completions", True),
        ("POST", "/generate_stream", True),
        ("POST", "/invocations", True),
        ("POST", "/v2/rerank", True),
        ("POST", "/v1/images/edits", True),
        ("PUT", "/v1/completions", True),
        ("PATCH", "/v1/completions", True),
        ("GET", "/v1/chat/completions", False),
        ("OPTIONS", "/v1/chat/completions", False),
        ("POST", "/tokenize", False),
        ("POST", "/v1/completions/", True),
        ("POST", "//v1//completions", True),
        ("POST", "/v1/./models/../completions", True),
        ("POST", "/../v1/completions/.", True),
        ("POST", "/V1/Chat//Completions", True),
        ("POST", "/v1/models/../..", False),
        ("GET", "/", False),
        ("POST", "/slots/0", False),
    ],
)
def test_what_a_model_works_on_takes_a_slot(method: str, path: str, *, takes: bool) -> None:
    assert takes_slot(method, path) is takes


@pytest.mark.parametrize(
    ("path", "body", "slot"),
    [
        ("/completion", b'{"prompt": "x", "id_slot": 3}', 3),
        ("/completion", b'{"id_slot":0,"prompt":"x"}', 0),
        ("/completion", b'{"prompt": "x", "id_slot": -1}', None),
        ("/completion", b'{"prompt": "x"}', None),
        ("/slots/2", b'{"filename": "a"}', 2),
        ("/slots/x", b"", None),
        ("/slots/99999999999", b"", None),
    ],
)
def test_a_slot_that_is_named_is_found(path: str, body: bytes, slot: int | None) -> None:
    assert slot_of(path, body) == slot
