"""Gaps filled through everything, as editors ask for it, by a model that has the tokens for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fleet import Fleet

from infill_models import write_infill_model

CELLS = 512
N_BATCH = 200
GAP: Any = {"input_prefix": "What is the capital", "input_suffix": " of France?"}
AS_TOKENS = "<|fim_prefix|>What is the capital<|fim_suffix|> of France?<|fim_middle|>"
EDITORS: Any = {
    "id_slot": 0,
    "prompt": "    ",
    "n_predict": 6,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/predicted_n", "truncated", "tokens_cached"],
}
"""What a plugin of llama.cpp's authors adds to each of its requests."""


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Of a fleet whose model knows gaps and files."""
    model = write_infill_model(tmp_path_factory.mktemp("infill") / "coder.gguf")
    with Fleet.start(agents=1, slots=2, model=None) as fleet:
        sizes = {"context_size": 2 * CELLS, "n_batch": N_BATCH}
        fleet.desire(model, temperature=0.0, penalty_presence=0.0, **sizes)
        fleet.wait_serving()
        with httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=30) as client:
            yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(answer: httpx.Response) -> list[Any]:
    lines = answer.text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def test_a_gap_is_what_its_tokens_are_to_the_engine(http: httpx.Client) -> None:
    filled = post(http, "/infill", **GAP, n_predict=12)
    assert filled["prompt"] == AS_TOKENS
    tokens = post(http, "/tokenize", content=AS_TOKENS)["tokens"]
    continued = post(http, "/completion", prompt=tokens, n_predict=12)
    assert filled.keys() == continued.keys()
    for name in ("content", "tokens_evaluated", "tokens_predicted", "stop_type", "prompt"):
        assert filled[name] == continued[name], name
    assert filled["tokens_evaluated"] == len(tokens)


def test_a_stream_says_the_same(http: httpx.Client) -> None:
    whole = post(http, "/infill", **GAP, n_predict=12)
    *events, last = told(http.post("/infill", json={**GAP, "n_predict": 12, "stream": True}))
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [last["stop"], last["prompt"]] == [True, AS_TOKENS]
    assert not any(event["stop"] for event in events)


def test_an_editors_request_is_answered(http: httpx.Client) -> None:
    extra = [{"text": "one = 1", "filename": "a.py", "time": 1.5}, {"text": "two"}]
    answer = http.post("/infill", json={**GAP, **EDITORS, "input_extra": extra})
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == set(EDITORS["response_fields"])
    ignored = answer.headers["x-paddler-ignored-fields"]
    assert ignored == (
        "n_indent, samplers.infill, t_max_prompt_ms, t_max_predict_ms, input_extra[].time"
    )


def test_other_texts_and_a_middle_have_their_places(http: httpx.Client) -> None:
    extra = [{"text": "one = 1", "filename": "a.py"}, {"text": "two"}]
    filled = post(http, "/infill", **GAP, n_predict=1, prompt="    ", input_extra=extra)
    assert filled["prompt"] == (
        "<|repo_name|>repository\n<|file_sep|>a.py\none = 1<|file_sep|>tmp\ntwo<|file_sep|>file\n"
        f"{AS_TOKENS}    "
    )


def test_no_text_is_a_control_token(http: httpx.Client) -> None:
    """Were they tokens, the prompt would be as long as their number."""
    marks = "<|fim_middle|><|im_end|><|endoftext|>"
    as_text = post(http, "/tokenize", content=marks, parse_special=False)["tokens"]
    extra = [{"text": marks, "filename": marks}]
    each = {"input_prefix": marks, "input_suffix": marks, "prompt": marks}
    filled = post(http, "/infill", **each, n_predict=1)
    assert filled["tokens_evaluated"] == 3 + 3 * len(as_text)
    with_extra = post(http, "/infill", **each, n_predict=1, input_extra=extra)
    assert with_extra["tokens_evaluated"] >= filled["tokens_evaluated"] + 2 * len(as_text)


def test_what_is_too_long_is_cut_and_answered(http: httpx.Client) -> None:
    words = [f" word{number}" for number in range(2000)]
    text = "".join(words)
    extra = [{"text": text, "filename": "far.py"}]
    filled = post(
        http, "/infill", input_prefix=text, input_suffix=text, input_extra=extra, n_predict=8
    )
    assert filled["tokens_evaluated"] == CELLS - CELLS // 4
    assert filled["tokens_predicted"] == 8
    others, prefix, rest = (
        filled["prompt"].replace("<|fim_suffix|>", "<|fim_prefix|>").split("<|fim_prefix|>")
    )
    suffix = rest.removesuffix("<|fim_middle|>")
    assert text.endswith(prefix)
    assert text.startswith(suffix)
    assert len(prefix) > 2 * len(suffix) > 0
    assert others.startswith("<|repo_name|>repository\n<|file_sep|>far.py\n")
    assert others.endswith(f"{words[-1]}<|file_sep|>file\n")


def test_a_keystroke_leaves_what_is_before_it_in_the_cache(http: httpx.Client) -> None:
    prefix = "".join(f" line{number}" for number in range(20))
    body: Any = {"input_prefix": prefix, "input_suffix": " end", "n_predict": 4}
    first = post(http, "/infill", **body, prompt=" a word")
    again = post(http, "/infill", **body, prompt=" a word more")
    assert first["tokens_evaluated"] > 40
    assert again["tokens_cached"] >= first["tokens_evaluated"] - 1


def test_a_prompt_is_computed_before_it_is_needed(http: httpx.Client) -> None:
    """As llama.vim has the other texts computed."""
    extra = [{"text": "".join(f" part{number}" for number in range(30)), "filename": "b.py"}]
    empty: Any = {"input_prefix": "", "input_suffix": "", "input_extra": extra, "samplers": []}
    early = post(http, "/infill", **empty, n_predict=0)
    assert [early["tokens_predicted"], early["stop_type"]] == [1, "limit"]
    needed = post(http, "/infill", **GAP, input_extra=extra, n_predict=4)
    assert needed["tokens_cached"] > early["tokens_evaluated"] - 5


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 5}, "input_suffix"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"input_extra": "text"}, "input_extra"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0].filename"),
        ({"lora": [{"id": 0}]}, "lora[0].id"),
    ],
)
def test_what_is_no_gap_is_refused_by_name(http: httpx.Client, change: Any, param: str) -> None:
    answer = http.post("/infill", json={**GAP, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_native_request_has_the_same_prompt(http: httpx.Client) -> None:
    prompt = {"Infill": {"prefix": GAP["input_prefix"], "suffix": GAP["input_suffix"]}}
    assert post(http, "/api/v2/render_prompt", prompt=prompt)["prompt"] == AS_TOKENS
    answer = http.post("/api/v2/generate", json={"prompt": prompt, "max_tokens": 12})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    results = [line["Response"]["response"]["GeneratedToken"] for line in lines]
    text = "".join(each["ContentToken"] for each in results if "ContentToken" in each)
    assert text == post(http, "/infill", **GAP, n_predict=12)["content"]


# --------------------------------------------------------------------------- OpenAI's suffix


def test_a_suffix_is_what_follows_the_gap(http: httpx.Client) -> None:
    filled = post(http, "/infill", **GAP, n_predict=12)
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none") as client:
        wishes: Any = {"model": "any", "prompt": GAP["input_prefix"], "max_tokens": 12}
        whole = client.completions.create(**wishes, suffix=GAP["input_suffix"])
        assert whole.choices[0].text == filled["content"]
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == filled["tokens_evaluated"]
        echoed = client.completions.create(**wishes, suffix=GAP["input_suffix"], echo=True)
        assert echoed.choices[0].text == GAP["input_prefix"] + filled["content"]
        events = client.completions.create(**wishes, suffix=GAP["input_suffix"], stream=True)
        assert "".join(event.choices[0].text for event in events) == filled["content"]
        with pytest.raises(openai.BadRequestError, match="with a suffix it must be a text"):
            client.completions.create(model="any", prompt=[1, 2], suffix="x")


# ------------------------------------------------------------------- a model that cannot do it


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/infill", GAP),
        ("/infill", {**GAP, "response_fields": ["content"]}),
        ("/v1/completions", {"prompt": "What is", "suffix": "?"}),
    ],
)
def test_a_model_without_the_tokens_is_501(
    fleet: Fleet, path: str, body: Any, *, is_stream: bool
) -> None:
    answer = httpx.post(
        f"{fleet.inference_url}{path}",
        json={**body, "stream": is_stream},
        trust_env=False,
        timeout=30,
    )
    assert answer.status_code == 501, answer.text
    error = answer.json()["error"]
    assert error["type"] == "not_supported_error"
    assert error["message"].startswith(
        "Infill is not supported by this model: its vocabulary has no prefix token, suffix token, "
    )
