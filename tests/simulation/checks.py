"""What must be true when everything is over.

Every request ended once; an answer is whole and to the letter what one set of weights says; and an
error needs an excuse: evidence, in what agents and clients did, that this ending was the promised
one. An error without one is a request that was failed although it could have been served.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from client_lines import documents_of
from language import answer, embedding
from scenario import Poison, Shape
from watched_dispatcher import WatchedDispatcher
from world import SLACK_S, Story, World


def check_aftermath(world: World, dispatcher: WatchedDispatcher) -> None:
    """Nothing is held, nobody waits, nothing is open."""
    statistics = dispatcher.statistics()
    left = {
        "slots processing": statistics.slots_processing,
        "slots": statistics.slots_total,
        "buffered": statistics.requests_buffered,
        "requests": len(dispatcher._requests),
        "agents": len(dispatcher.agents),
        "connections": sum(not wire.finished for wire in world.wires),
        "outboxes": sum(
            request.outbox.statistics().open_send_channels for request in dispatcher.submitted
        ),
        "logged errors": world.errors_logged,
    }
    for what, count in left.items():
        if count:
            world.fail(f"left behind: {what}: {count}")


def check_stories(world: World) -> None:
    """Every request of every client."""
    for story in world.stories.values():
        problem = next(_problems(story, world), None)
        if problem is not None:
            world.fail(f"{story.ask.prompt}: {problem}; beginnings {story.beginnings}")


def _problems(story: Story, world: World) -> Iterator[str]:
    if len(story.endings) > 1:
        yield f"ended {len(story.endings)} times: {story.endings}"
    if not story.endings and not _may_end_unsaid(story, world):
        yield "it never ended"
    if story.ask.shape is Shape.MALFORMED:
        if story.endings and not story.endings[0].startswith("error 400"):
            yield f"it is no request, and ended as {story.endings[0]}"
        return
    yield from _problems_of_text(story, world)
    for failure in (*story.endings, *story.failed_parts):
        if failure != "done" and not _has_excuse(story, failure, world):
            yield f"no reason to end with: {failure}"


def _problems_of_text(story: Story, world: World) -> Iterator[str]:
    """To the letter what one set of weights says; all of it, if it is done."""
    is_done = story.endings == ["done"] and story.stopped_at_s is None
    if story.ask.shape is Shape.EMBEDDING:
        documents = documents_of(story.ask)
        heard = [json.dumps(result) for result in story.results]
        by_model = [
            {json.dumps(embedding(document, path)) for document in documents}
            for path in {order.subject for order in world.scenario.swaps}
        ]
        has_paddler = any(agent.is_paddler for agent in world.scenario.agents)
        # a Paddler agent does not report what it serves
        allowed = [set().union(*by_model)] if has_paddler else by_model
        if len(set(heard)) < len(heard) or not any(each.issuperset(heard) for each in allowed):
            yield f"embeddings that no one model makes of its documents: {heard}"
        if is_done and not story.failed_parts and len(heard) < len(documents):
            yield f"it is done with {len(heard)} of {len(documents)} embeddings"
        return
    is_other = story.ask.shape is Shape.OTHER
    if any(begun.weights.startswith("o") != is_other for begun in story.beginnings):
        yield f"it was given to the wrong deployment: {story.beginnings}"
    whole = [
        answer(story.ask.prompt, begun.seed, begun.weights, story.ask.max_tokens)
        for begun in story.beginnings
    ]
    shown = [result for result in story.results if "Done" not in result]
    if shown and not any(text[: len(shown)] == shown for text in whole):
        yield f"no model says {story.results}"
    if is_done and story.results not in whole:
        yield f"it is done with {len(story.results)} results"


def _may_end_unsaid(story: Story, world: World) -> bool:
    """Its client left, did not read to the end, or spoke to a balancer that was closing already, or
    everything was cut off by a second SIGTERM."""
    return (
        story.left_at_s is not None
        or story.stopped_at_s is not None
        or story.was_refused
        or (story.submitted_s is None and world.draining_since_s is not None)
        or world.killed
        or not story.client.reading.is_quick
    )


def _has_excuse(story: Story, ending: str, world: World) -> bool:
    has_modes = len({order.subject[0] for order in world.scenario.swaps}) > 1
    if ending in ("disabled", "EmbeddingsDisabled"):
        return has_modes or _is_in_wrong_mode(story, world)
    code, description = ending.removeprefix("error ").split(" ", 1)
    match code:
        case "400":
            return _shares_its_id(story, world) and "already in flight" in description
        case "501":
            return has_modes or _is_in_wrong_mode(story, world)
        case "502":
            return _lost_for_good(story, description, world)
        case "503" if description.startswith("Buffered requests overflow"):
            return story.was_buffer_full
        case "503" if description == "balancer is shutting down":
            return world.draining_since_s is not None
        case "503" if description == "No agents are currently connected":
            return story.ask.shape is Shape.EMBEDDING
        case "503":
            return not story.client.reading.is_quick
        case "504" if description.startswith("Inference timed out"):
            return story.was_silent_too_long
        case "504":
            return story.longest_wait_s >= world.scenario.buffered_timeout_s - SLACK_S
    return False


def _is_in_wrong_mode(story: Story, world: World) -> bool:
    makes_embeddings = world.scenario.swaps[0].subject.startswith("e")
    return makes_embeddings != (story.ask.shape is Shape.EMBEDDING)


def _shares_its_id(story: Story, world: World) -> bool:
    same = (story.client, story.request_id)
    return sum((other.client, other.request_id) == same for other in world.stories.values()) > 1


def _lost_for_good(story: Story, description: str, world: World) -> bool:
    """Is what was lost beyond what the balancer promises to recover from?"""
    if "malformed frame" in description:
        return story.was_named_by_broken_frame
    if description.startswith("Response channel closed"):
        return world.killed
    if "died while they worked" in description:
        deadly = [other.ask.poison for other in world.stories.values() if other.ask.poison]
        are_told_apart = deadly.count(Poison.AGENT) < 2 and not any(
            agent.is_paddler for agent in world.scenario.agents
        )
        is_innocent = story.ask.poison is None and world.scenario.temper == "poisoned"
        is_innocent = is_innocent and are_told_apart
        return story.suspicions >= 2 and not is_innocent
    if "This call was begun with revision" in description:
        return story.was_stranded
    if "that can continue the answer" in description:
        return story.was_stranded
    if "continuations" in description:
        return story.grants >= 3
    return description == "Agent controller connection closed" and story.spoke_without_tokens
