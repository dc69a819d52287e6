"""What clients say and how they read what they are told, line by line, into their stories.

What can never be right, whatever happened, fails on the spot: a line after the ending, a result of
somebody else's request, an agent that never had the request.
"""

from __future__ import annotations

import json
from typing import Any

from language import piece
from scenario import Ask, Shape
from second_deployment import OTHER
from world import Story, World

PATHS = {
    Shape.RAW: "/api/v1/continue_from_raw_prompt",
    Shape.MALFORMED: "/api/v1/continue_from_raw_prompt",
    Shape.CONVERSATION: "/api/v1/continue_from_conversation_history",
    Shape.EMBEDDING: "/api/v1/generate_embedding_batch",
    Shape.OTHER: "/api/v2/generate",
}


def body_of(ask: Ask) -> dict[str, object]:
    """The parameters of this request."""
    if ask.shape is Shape.MALFORMED:
        return {"raw_prompt": 7, "max_tokens": ask.max_tokens}
    if ask.shape is Shape.EMBEDDING:
        return {
            "input_batch": [{"id": document, "content": "text"} for document in documents_of(ask)],
            "normalization_method": "L2",
        }
    if ask.shape is Shape.OTHER:
        prompt = {"Text": {"text": ask.prompt}}
        return {"model": OTHER, "prompt": prompt, "max_tokens": ask.max_tokens}
    if ask.shape is Shape.CONVERSATION:
        return {
            "add_generation_prompt": True,
            "conversation_history": [{"role": "user", "content": ask.prompt}],
            "enable_thinking": False,
            "max_tokens": ask.max_tokens,
        }
    return {"raw_prompt": ask.prompt, "max_tokens": ask.max_tokens}


def documents_of(ask: Ask) -> list[str]:
    """The ids of the documents of an embedding batch."""
    return [f"{ask.prompt}/{number}" for number in range(ask.max_tokens)]


def read_line(world: World, story: Story, frame: Any) -> None:
    prompt = story.ask.prompt
    if story.endings:
        world.fail(f"{prompt}: a line after its ending: {json.dumps(frame)[:100]}")
    match frame:
        case {"Error": {"error": {"code": code, "description": description}}}:
            story.endings.append(f"error {code} {description}")
            world.note(story.client.name, f"{prompt} fails: {code} {description}")
        case {"Response": {"response": {"GeneratedToken": {"TokenGenerationDisabled": _}}}}:
            story.endings.append("disabled")
            world.note(story.client.name, f"{prompt} finds generation disabled")
        case {"Response": {"generated_by": name, "response": {"GeneratedToken": result}}}:
            if all(name != beginning.name for beginning in story.beginnings):
                world.fail(f"{prompt} is answered by {name}, which never had it")
            _read_result(world, story, result)
        case _:
            world.fail(f"{prompt}: not a line: {json.dumps(frame)[:100]}")


def _read_result(world: World, story: Story, result: Any) -> None:
    story.results.append(result)
    (tag,) = result
    if tag == "Done":
        story.endings.append("done")
        world.note(story.client.name, f"{story.ask.prompt} is done")
    elif not str(result[tag]).startswith(piece(story.ask.prompt, 0)[:-2]):
        world.fail(f"{story.ask.prompt} hears somebody else's {result}")


def read_embedding_line(world: World, story: Story, frame: Any) -> None:
    if story.endings:
        world.fail(f"{story.ask.prompt}: a line after its ending: {frame}")
    match frame:
        case {"Response": {"generated_by": None, "response": {"Embedding": "Done"}}}:
            story.endings.append("done")
            world.note(story.client.name, f"{story.ask.prompt} is done")
        case {"Response": {"response": {"Embedding": {"Embedding": _} as result}}}:
            story.results.append(result)
        case {"Response": {"response": {"Embedding": str(end)}}} if end != "Done":
            story.failed_parts.append(end)
        case {"Error": {"error": {"code": code, "description": description}}}:
            story.failed_parts.append(f"error {code} {description}")
            world.note(
                story.client.name, f"a part of {story.ask.prompt} fails: {code} {description}"
            )
        case _:
            world.fail(f"{story.ask.prompt}: not a line: {json.dumps(frame)[:100]}")
