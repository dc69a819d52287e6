"""pydantic-ai: an agent over one tool whose answer has a given shape, by a forced call."""

import asyncio
import json
import os
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

calls: list[tuple[str, int]] = []


class Warmest(BaseModel):
    """Where it is warmest."""

    city: str
    degrees: int


async def main(api: str, is_streamed: bool) -> None:
    url = os.environ["FLEET_URL"]
    if api == "messages":
        model = AnthropicModel("default", provider=AnthropicProvider(base_url=url, api_key="none"))
    else:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
        model = kind("default", provider=provider)
    agent = Agent(model, output_type=Warmest, instructions="Answer shortly.")

    @agent.tool_plain
    def look_up(city: str, days: int) -> str:
        """Look up the weather of a city."""
        calls.append((city, days))
        return f"{city}: 20 degrees"

    if is_streamed:
        async with agent.run_stream("Where is it warm?") as result:
            output = await result.get_output()
    else:
        output = (await agent.run("Where is it warm?")).output
    print(json.dumps({"calls": calls, "shaped": output.model_dump()}))


asyncio.run(main(sys.argv[1], sys.argv[2] == "streamed"))
