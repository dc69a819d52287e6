"""Several models behind one address: OpenAI's official client finds them by name and by key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import openai
import pytest
from fleet import BUNDLED_MODEL, Fleet

from llama_source import template_text
from paddler_trio.balancer.keys.api_keys import (
    KeyFile,
    KeyScope,
    StoredKey,
    new_secret,
    write_key_file,
)

PARAMETERS = {"context_size": 1024, "temperature": 0.0}
MODEL = {"LocalToAgent": str(BUNDLED_MODEL)}
TEMPLATE = "{% for message in messages %}code: {{ message['content'] }}\n{% endfor %}"


@attrs.frozen
class Models:
    """A fleet of one agent with three deployments, seen with a key that may use all, and with one
    for ``coder``."""

    client: openai.OpenAI
    shop: openai.OpenAI

    def status(self) -> dict[str, Any]:
        listed = self.client.models.list().data
        return {each.id: each.model_extra["status"]["value"] for each in listed}  # type: ignore[index]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    keys = {"all": new_secret(), "shop": new_secret()}
    content = KeyFile()
    for name, deployments in (("all", frozenset[str]()), ("shop", frozenset({"coder"}))):
        key = StoredKey.of(
            keys[name],
            name=name,
            scopes=frozenset({KeyScope.INFERENCE}),
            created="2026-01-02",
            deployments=deployments,
        )
        content = content.having(key)
    write_key_file(file, content)
    options = ["--strict-model-names", f"--api-key-file={file}"]
    with Fleet.start(agents=1, slots=2, model=None, balancer_options=options) as fleet:
        deployments = [
            {"name": "default", "model": MODEL, "parameters": PARAMETERS},
            {
                "name": "coder",
                "model": MODEL,
                "parameters": PARAMETERS,
                "template": TEMPLATE,
                "aliases": ["qwen-coder"],
                "slots": 1,
            },
            {
                "name": "embedder",
                "model": MODEL,
                "parameters": {**PARAMETERS, "enable_embeddings": True},
                "replicas": "0..1",
                "slots": 1,
            },
        ]
        answer = httpx.put(
            f"{fleet.management_url}/api/v2/fleet",
            json={"state": {"deployments": deployments}, "note": "three"},
            trust_env=False,
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        fleet.wait_until(
            lambda view: (
                {a["name"] for a in view["agents"] if a["is_accepting"]} == {"a1", "a1.coder"}
            ),
            what="two of three are served",
            nobody_ends=True,
        )
        clients = [
            openai.OpenAI(
                base_url=f"{fleet.inference_url}/v1",
                api_key=secret,
                max_retries=0,
                timeout=60,
                http_client=openai.DefaultHttpxClient(trust_env=False),
            )
            for secret in keys.values()
        ]
        made = Models(*clients)
        assert made.status() == {own_name(): "loaded", "coder": "loaded", "embedder": "unloaded"}
        yield made
        for client in clients:
            client.close()


def own_name() -> str:
    """What ``default`` is called."""
    return Path(BUNDLED_MODEL).name.removesuffix(".gguf")


def chat(client: openai.OpenAI, model: str) -> openai.types.chat.ChatCompletion:
    messages: list[Any] = [{"role": "user", "content": "Who are you?"}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=8)


def test_each_name_is_answered_by_its_model(models: Models) -> None:
    client = models.client
    general, coder, alias = (chat(client, name) for name in ("default", "coder", "qwen-coder"))
    assert general.usage is not None
    assert coder.usage is not None
    assert alias.usage is not None
    assert coder.usage.prompt_tokens == alias.usage.prompt_tokens
    assert coder.usage.prompt_tokens != general.usage.prompt_tokens, "their templates differ"
    assert coder.system_fingerprint == alias.system_fingerprint
    assert coder.system_fingerprint != general.system_fingerprint
    assert (general.model, coder.model, alias.model) == ("default", "coder", "qwen-coder")
    with pytest.raises(openai.NotFoundError, match=r"gpt-4.*is not served"):
        chat(client, "gpt-4")


def test_a_key_gets_what_it_was_made_for(models: Models) -> None:
    client = models.shop
    assert [each.id for each in client.models.list()] == ["coder"]
    assert chat(client, "coder").model == "coder"
    for name in ("default", own_name(), "embedder"):
        with pytest.raises(openai.NotFoundError, match="served is: coder, qwen-coder"):
            chat(client, name)


def test_a_model_on_demand_is_loaded_by_its_first_request(models: Models) -> None:
    client = models.client
    assert models.status()["embedder"] == "unloaded"
    answer = client.embeddings.create(model="embedder", input=["one", "two"])
    assert [len(each.embedding) > 0 for each in answer.data] == [True, True]
    assert models.status()["embedder"] == "loaded"
    assert chat(client, "coder").model == "coder", "the others go on"


def test_the_operator_gives_the_one_model_other_names() -> None:
    options = ["--model-alias=house-model", "--model-alias=gpt-4o", "--strict-model-names"]
    with (
        Fleet.start(agents=1, slots=1, model=None, balancer_options=options) as fleet,
        httpx.Client(base_url=fleet.inference_url, trust_env=False, timeout=60) as http,
    ):
        one = {
            "name": "default",
            "model": MODEL,
            "parameters": PARAMETERS,
            "template": template_text("meta-llama-Llama-3.1-8B-Instruct.jinja"),
        }
        state = {"state": {"deployments": [one]}, "note": "one"}
        url = f"{fleet.management_url}/api/v2/fleet"
        httpx.put(url, json=state, trust_env=False, timeout=60).raise_for_status()
        fleet.wait_serving()
        (listed,) = http.get("/v1/models").json()["data"]
        assert listed["id"] == "house-model"
        assert listed["aliases"] == [f"{own_name()}.gguf", own_name(), "gpt-4o"]
        for asked in (None, "house-model", "gpt-4o", own_name(), "default"):
            body = {"prompt": "a", "max_tokens": 1, "model": asked}
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == (asked or "house-model")
        refused = http.post("/v1/completions", json={"prompt": "a", "model": "gpt-5"})
        assert refused.json()["error"]["code"] == "model_not_found"
        assert http.get("/v1/models/gpt-4o").json()["id"] == "house-model"
        abilities = http.get("/props").json()["chat_template_caps"]  # its template takes one call
        assert abilities["supports_tool_calls"] is True
        assert abilities["supports_parallel_tool_calls"] is False
