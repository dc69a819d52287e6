"""The words of the page about workloads and figures."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import attrs


@attrs.frozen
class Meaning:
    """A figure in words."""

    term: str
    words: str


WORKLOADS: Final = MappingProxyType(
    {
        "plain": "Prompts of one length, none like another.",
        "prefix": "All prompts begin with the same long text, as behind one system prompt.",
        "mixed": "One prompt in four is long.",
    }
)

MEANINGS: Final = (
    Meaning(
        "Tokens per second",
        "Tokens of all answers as the server counts them, over the time of the runs. The end of "
        "a run, when some clients have finished, is included.",
    ),
    Meaning(
        "Time to first token",
        "From sending a request, with its connection if it needs a new one, to the first text, "
        "of reasoning too where the server shows it.",
    ),
    Meaning(
        "Inter-token latency",
        "Between two pieces of text of one answer. A server that sends several tokens at once "
        "has fewer and longer ones.",
    ),
    Meaning(
        "Queue",
        "The time to first token less the time that the server says it computed the prompt "
        "(timings.prompt_ms): waiting for a slot and the engine, and the way there and back.",
    ),
    Meaning(
        "p50, p95, p99",
        "So many percent of the requests of all rounds were no slower. Of fewer than 100 "
        "requests p99 is the slowest.",
    ),
    Meaning(
        "Failed",
        "Requests that failed count here and in no other figure. Unfinished ones were under way "
        "when the test was ended.",
    ),
    Meaning(
        "Client CPU",
        "Processor time of the load test itself, as a share of one core; it shares the machine "
        "with what it measures unless it runs on another one.",
    ),
)
