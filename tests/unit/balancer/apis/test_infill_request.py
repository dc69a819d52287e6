"""The body of ``/infill``: what becomes of each of its own fields."""

from __future__ import annotations

from typing import Any

import pytest

from paddler_trio.balancer.apis.api_errors import ApiError
from paddler_trio.balancer.apis.ignored_fields import IgnoredFields
from paddler_trio.balancer.apis.limits import ApiLimits
from paddler_trio.balancer.apis.llama_server.infill import InfillRequest, read_infill
from paddler_trio.wire.trio.work import InfillPrompt, OtherText

LIMITS = ApiLimits()
GAP: Any = {"input_prefix": "a", "input_suffix": "b"}


def read(**body: object) -> InfillRequest:
    return read_infill({**GAP, **body}, LIMITS, IgnoredFields())


def test_each_text_has_its_place() -> None:
    extra = [{"text": "c", "filename": "c.py"}, {"text": "d"}]
    request = read(prompt="e", input_extra=extra, n_predict=7, stop=["\n"])
    others = OtherText(text="c", filename="c.py"), OtherText(text="d", filename="tmp")
    prompt = InfillPrompt(prefix="a", suffix="b", middle="e", others=others)
    assert request.prompt == prompt
    (work,) = request.completion.works([prompt])
    assert (work.prompt, work.max_tokens, work.stop) == (prompt, 7, ("\n",))


@pytest.mark.parametrize(
    ("fields", "is_shown"),
    [([], True), (["content"], False), (["content", "prompt"], True)],
)
def test_the_prompt_is_shown_to_who_wants_it(fields: list[str], *, is_shown: bool) -> None:
    assert read(response_fields=fields).shows_prompt is is_shown


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["top_k", "top_p", "infill"], ("top_k", "top_p")),
        ("kpi", ("top_k", "top_p")),
        (["top_k"], ("top_k",)),
        (["infill"], None),
        ("i", None),
    ],
)
def test_the_stage_of_editors_is_left_out_and_reported(given: object, kept: object) -> None:
    ignored = IgnoredFields()
    body = {**GAP, "samplers": given}
    request = read_infill(body, LIMITS, ignored)
    assert request.completion.generate.sampling.samplers == kept
    has_stage = given != ["top_k"]
    name = "samplers.i" if isinstance(given, str) else "samplers.infill"
    assert ignored.names == [name] * has_stage + ["samplers"] * (kept is None)
    if has_stage:
        with pytest.raises(ApiError, match="is none of") as told:
            read_infill(body, LIMITS)
        assert (told.value.param or "").startswith("samplers")
