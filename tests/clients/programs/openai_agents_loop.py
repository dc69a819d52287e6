"""OpenAI's Agents SDK: a loop over one tool, whole or streamed; prints what it called and said."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api

calls: list[tuple[str, int]] = []


@function_tool
def look_up(city: str, days: int) -> str:
    """Look up the weather of a city."""
    calls.append((city, days))
    return f"{city}: 20 degrees"


async def main(api: str, is_streamed: bool) -> None:
    set_default_openai_api(api)
    agent = Agent(name="weather", instructions="Answer shortly.", tools=[look_up], model="default")
    if is_streamed:
        result = Runner.run_streamed(agent, "Where is it warm?")
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "Where is it warm?")
    print(json.dumps({"calls": calls, "text": result.final_output}))


asyncio.run(main(sys.argv[1], sys.argv[2] == "streamed"))
