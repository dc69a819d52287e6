"""Texts over Ollama's API: LangChain, whole, streamed and behind a context, LlamaIndex, and LiteLLM
under both of its prefixes."""

import json
import os

import litellm
from langchain_ollama import OllamaLLM
from llama_index.llms.ollama import Ollama

url, model = os.environ["FLEET_URL"], "default"
langchain = OllamaLLM(model=model, base_url=url, validate_model_on_init=False)


def generated(prompt: str, **more: object) -> dict:
    return langchain.generate([prompt], **more).generations[0][0].generation_info


def litellms(prefix: str, **more: object) -> str:
    asked = [{"role": "user", "content": "Where is it warm?"}]
    answer = litellm.completion(model=f"{prefix}/{model}", api_base=url, messages=asked, **more)
    if not more:
        return answer.choices[0].message.content
    return "".join(each.choices[0].delta.content or "" for each in answer)


first = generated("Where is it warm?")["context"]
second = generated("And cold?", context=first)["context"]
llama_index = Ollama(model=model, base_url=url, request_timeout=60)
texts = [
    langchain.invoke("Where is it warm?"),
    "".join(langchain.stream("Where is it warm?")),
    llama_index.complete("Where is it warm?").text,
    [*llama_index.stream_complete("Where is it warm?")][-1].text,
    *(litellms(prefix) for prefix in ("ollama", "ollama_chat")),
    *(litellms(prefix, stream=True) for prefix in ("ollama", "ollama_chat")),
]
print(json.dumps({"texts": texts, "goes_on": second[: len(first)] == first}))
