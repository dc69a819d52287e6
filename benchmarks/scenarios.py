"""What is asked of the contestants: lanes of prompts, distinct from the first word on.

No two prompts of a benchmark begin alike, except where a scenario is about that, so that what is
measured is work and not whose cache remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

WORDS = tuple(
    """
    river lamp stone garden seven paper window morning bridge silver winter apple letter summer
    north train ocean candle market forest yellow engine island copper valley music harbour
    pencil cloud basket thunder corner
    """.split()  # noqa: SIM905  # thirty-two quoted words would be harder to read
)
"""Thirty-two ordinary words; an odd step through them visits every one."""

PEOPLE: Mapping[str, object] = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "home": {
                "type": "object",
                "properties": {
                    "street": {"type": "string"},
                    "city": {"type": "string"},
                    "country": {"enum": ["DE", "FR", "GB", "JP", "US"]},
                },
                "required": ["street", "city"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}
"""More of them than any answer has room for, so that all answers are equally long."""


@attrs.frozen
class Ask:
    """One request: a raw prompt, how many tokens it wants at most, and the JSON Schema that binds
    its answer, if any. ``is_whole``: whatever the model says, it gets all of them."""

    prompt: str
    max_tokens: int
    schema: Mapping[str, object] | None = None
    is_whole: bool = False


@attrs.frozen
class AskLane:
    """Requests one client sends one after the other; late ones begin when all others generate."""

    asks: tuple[Ask, ...]
    is_late: bool = False


@attrs.frozen
class Scenario:
    """``lanes_of(round)`` builds the requests of one round.

    With late lanes, times to first token are those of the late ones, and gaps are those of the
    others while a late one waits for its first token.
    """

    name: str
    title: str
    lanes_of: Callable[[int], Sequence[AskLane]]
    shows_cache: bool = False
    """Worth a row with llama-server's prompt cache on, and one of ours without residency."""
    shows_unbound: bool = False
    """Worth a row of each side without the schema."""
    may_fail: bool = False
    """Requests that fail, or end before their limit, are counted instead of ending the run."""
    before: Callable[[int], Sequence[AskLane]] | None = None
    """Requests that fill the slots before each round; nothing of them is counted."""


@attrs.frozen
class Sizes:
    """How much work a round is. ``long_words``, ``prefix_words``, ``mixed_words`` and
    ``template_words`` are lengths of prompts."""

    slots: int
    max_tokens: int
    crowd: int
    long_prompts: int
    long_words: int
    prefix_words: int
    mixed_words: int
    template_words: int
    short_requests: int
    turns: int
    template_turns: int
    cells: int
    under_pressure: bool = False
    """Nothing but the scenario that has too few cells for all."""


def text_of(words: int, *, seed: int) -> str:
    """A text of so many words; texts of different seeds differ from the first characters on."""
    step = 2 * (seed % 16) + 1
    chosen = (WORDS[(seed * 11 + i * step + i // 32) % len(WORDS)] for i in range(words))
    return f"{str(seed)[::-1]} " + " ".join(chosen)


def all_scenarios(sizes: Sizes) -> list[Scenario]:
    """In the order they are run and printed."""

    def seed(round_number: int, index: int) -> int:
        return 1000 * (round_number + 1) + index

    def ask(round_number: int, index: int, words: int, max_tokens: int) -> Ask:
        return Ask(text_of(words, seed=seed(round_number, index)), max_tokens)

    each = max(1, sizes.max_tokens // 2)

    def single(round_number: int) -> list[AskLane]:
        return [AskLane(tuple(ask(round_number, i, 20, sizes.max_tokens) for i in range(3)))]

    def full(round_number: int) -> list[AskLane]:
        return [
            AskLane((ask(round_number, 100 + i, 20, sizes.max_tokens),)) for i in range(sizes.slots)
        ]

    def bound(round_number: int) -> list[AskLane]:
        return [
            AskLane((attrs.evolve(one, schema=PEOPLE),))
            for one in (
                ask(round_number, 150 + i, 20, sizes.max_tokens) for i in range(sizes.slots)
            )
        ]

    def crowded(round_number: int) -> list[AskLane]:
        each = max(1, sizes.max_tokens // 4)
        return [AskLane((ask(round_number, 200 + i, 20, each),)) for i in range(sizes.crowd)]

    def interrupted(round_number: int) -> list[AskLane]:
        others = max(1, sizes.slots - 1)
        lanes = [
            AskLane((ask(round_number, 300 + i, 20, 2 * sizes.max_tokens),)) for i in range(others)
        ]
        long = tuple(
            ask(round_number, 350 + i, sizes.long_words, 4) for i in range(sizes.long_prompts)
        )
        return [*lanes, AskLane(long, is_late=True)]

    def short(round_number: int) -> list[AskLane]:
        lanes = 2 * sizes.slots
        return [
            AskLane(
                tuple(
                    ask(round_number, 400 + i, 8, 4)
                    for i in range(lane, sizes.short_requests, lanes)
                )
            )
            for lane in range(lanes)
        ]

    def shared(round_number: int) -> list[AskLane]:
        prefix = text_of(sizes.prefix_words, seed=seed(round_number, 900))
        return [
            AskLane((Ask(f"{prefix} {text_of(8, seed=seed(round_number, 910 + lane))}", 8),))
            for lane in range(sizes.slots)
        ]

    def prompts(round_number: int) -> list[AskLane]:
        return [AskLane(tuple(ask(round_number, 500 + i, sizes.long_words, 1) for i in range(3)))]

    def turns(round_number: int) -> list[AskLane]:
        lanes = []
        for user in range(sizes.slots):
            prompt, asks = text_of(40, seed=seed(round_number, 600 + user)), []
            for turn in range(sizes.turns):
                prompt += " " + text_of(20, seed=seed(round_number, 700 + 16 * user + turn))
                asks.append(Ask(prompt, 16))
            lanes.append(AskLane(tuple(asks)))
        return lanes

    def long_ones(round_number: int) -> list[AskLane]:
        return [
            AskLane((ask(round_number, 520 + i, sizes.long_words, 1),)) for i in range(sizes.slots)
        ]

    def after_long(round_number: int) -> list[AskLane]:
        return [
            AskLane((ask(round_number, 540 + i, 20, sizes.max_tokens // 4),))
            for i in range(sizes.slots)
        ]

    def mixed(round_number: int) -> list[AskLane]:
        # of equal length they would begin and end in step, and no prompt would meet a stream
        limits = [each * 3 // 4 + 37 * i % (each // 2 + 1) for i in range(4 * sizes.slots)]
        return [
            AskLane((ask(round_number, 560 + i, 20 if i % 8 else sizes.mixed_words, limit),))
            for i, limit in enumerate(limits)
        ]

    def template(round_number: int) -> list[AskLane]:
        shared_words = sizes.template_words * 9 // 10
        own_words = sizes.template_words - shared_words
        beginning = text_of(shared_words, seed=seed(round_number, 950))

        def own(client: int, turn: int) -> Ask:
            text = text_of(own_words, seed=seed(round_number, 16 * turn + client))
            return Ask(f"{beginning} {text}", each)

        return [
            AskLane(tuple(own(client, turn) for turn in range(sizes.template_turns)))
            for client in range(sizes.slots)
        ]

    def pressure(round_number: int) -> list[AskLane]:
        return [
            AskLane((ask(round_number, 800 + i, 20, sizes.cells * 7 // 8),))
            for i in range(sizes.slots)
        ]

    if sizes.under_pressure:
        title = f"{sizes.slots} answers, context for half of them"
        return [Scenario("pressure", title, pressure, may_fail=True)]
    return [
        Scenario("single", "1 stream", single),
        Scenario("full", f"{sizes.slots} streams", full),
        Scenario("bound", f"{sizes.slots} streams bound by a schema", bound, shows_unbound=True),
        Scenario("crowd", f"{sizes.crowd} streams, {sizes.slots} slots", crowded),
        Scenario("long", f"long prompts into {sizes.slots - 1} streams", interrupted),
        Scenario("short", "many short requests", short),
        Scenario(
            "prefix", f"{sizes.slots} requests with a common prefix", shared, shows_cache=True
        ),
        Scenario("prompts", "long prompts, one after the other", prompts),
        Scenario(
            "after-long", f"{sizes.slots} requests after long prompts", after_long, before=long_ones
        ),
        Scenario("mixed", "one long prompt in eight", mixed),
        Scenario(
            "template", f"{sizes.slots} clients, nine tenths shared", template, shows_cache=True
        ),
        Scenario("turns", f"{sizes.turns} turns of {sizes.slots} users", turns, shows_cache=True),
    ]
