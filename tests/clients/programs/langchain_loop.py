"""LangChain: an agent over one tool, whole or streamed, then an answer of a given shape."""

import json
import os
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

calls: list[tuple[str, int]] = []


class Warmest(BaseModel):
    """Where it is warmest."""

    city: str
    degrees: int


@tool
def look_up(city: str, days: int) -> str:
    """Look up the weather of a city."""
    calls.append((city, days))
    return f"{city}: 20 degrees"


def main(api: str, is_streamed: bool) -> None:
    url = os.environ["FLEET_URL"]
    if api == "ollama":
        model = ChatOllama(model="default", base_url=url, disable_streaming=not is_streamed)
    elif api == "messages":
        model = ChatAnthropic(model="default", base_url=url, api_key="none", streaming=is_streamed)
    else:
        model = ChatOpenAI(
            model="default",
            base_url=f"{url}/v1",
            api_key="none",
            use_responses_api=api == "responses",
            streaming=is_streamed,
        )
    agent = create_agent(model, [look_up], system_prompt="Answer shortly.")
    messages = agent.invoke({"messages": [{"role": "user", "content": "Where is it warm?"}]})
    method = {"method": "json_schema"} if api != "messages" else {}
    shaped = model.with_structured_output(Warmest, **method).invoke("The warmest as JSON?")
    print(
        json.dumps(
            {
                "calls": calls,
                "text": messages["messages"][-1].text,
                "shaped": shaped.model_dump(),
            }
        )
    )


main(sys.argv[1], sys.argv[2] == "streamed")
