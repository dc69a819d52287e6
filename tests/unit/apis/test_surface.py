"""Which dialect answers for which path, and what it costs to find out."""

from __future__ import annotations

import pytest

from paddler_trio.apis.api_errors import ApiError
from paddler_trio.apis.exchange import Exchange
from paddler_trio.apis.surface import Surface


async def endpoint(surface: Surface, exchange: Exchange) -> None:
    raise AssertionError("nobody asks it")


def anthropic(error: ApiError) -> dict[str, object]:
    return {}


def routed() -> Surface:
    surface = Surface(None, None, None)  # type: ignore[arg-type]  # for its routes alone
    surface.add("GET", "/v1/models", endpoint)
    surface.add("GET", "/v1/models/*", endpoint)
    surface.add("POST", "/v1/messages", endpoint, envelope=anthropic)
    surface.add("POST", "/v1/messages/count_tokens", endpoint, envelope=anthropic)
    return surface


@pytest.mark.parametrize(
    ("path", "is_anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/batches", True),
        ("/v1/messages/batches/1/results", True),
        ("/v1/messages/count_tokens/" + "a/" * 4000, True),
        ("/v1/messagesother", False),
        ("/v1/models/a/messages", False),
        ("/v1/" + "a/" * 4000, False),
        ("/v1", False),
        ("", False),
    ],
)
def test_an_unknown_path_is_refused_in_the_dialect_of_the_nearest_route(
    path: str, is_anthropic: bool
) -> None:
    assert (routed()._envelope(path) is anthropic) is is_anthropic


def test_the_dialect_is_found_in_a_few_looks_however_many_segments_a_path_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[str] = []
    find = Surface._find

    def counted(surface: Surface, path: str) -> object:
        looked_up.append(path)
        return find(surface, path)

    surface = routed()
    monkeypatch.setattr(Surface, "_find", counted)
    surface._envelope("/v1/" + "a/" * 4000)
    assert len(looked_up) <= 5
