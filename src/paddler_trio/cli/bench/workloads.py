"""The requests of a run: three workloads, each a function of a seed. Pure.

* ``plain``: prompts of one length, none like another.
* ``prefix``: all prompts begin with the same long text, as with one long system prompt for all
  users. It is the same in all runs against a target: after the first request it may be cached.
* ``mixed``: one prompt in four is long, at places that the seed chooses. Times to the first token
  of the short ones show whether they have to wait for the long ones.

Prompts made here, from a seed: plain English words, a little more than one token each. Pure.

No two prompts begin alike unless that is what is measured: each text starts with a number of its
own, so that no server can answer it with what it has computed for another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import Annotated, Final

import attrs

from paddler_trio.setting import Setting

WORDS: Final = tuple(
    """
    river lamp stone garden seven paper window morning bridge silver winter apple letter summer
    north train ocean candle market forest yellow engine island copper valley music harbour pencil
    cloud basket thunder corner table story under before water light small house with from into
    after green other never always people water road field sound early night under every thing
    """.split()  # noqa: SIM905  # sixty quoted words would be harder to read
)
SENTENCE_WORDS: Final = 12
_OPENING_DIGITS: Final = 8


def text_of(words: int, random: Random) -> str:
    """A text of so many words, its number among them."""
    opening = str(random.randrange(10 ** (_OPENING_DIGITS - 1), 10**_OPENING_DIGITS))
    chosen = [opening, *random.choices(WORDS, k=max(0, words - 1))]
    sentences = (
        " ".join(chosen[start : start + SENTENCE_WORDS])
        for start in range(0, len(chosen), SENTENCE_WORDS)
    )
    return ". ".join(sentences) + "."


LOAD: Final = "The load"
MAX_WORDS: Final = 100_000
ONE_LONG_IN: Final = 4


class Workload(StrEnum):
    """See the module docstring."""

    plain = "plain"
    prefix = "prefix"
    mixed = "mixed"


@attrs.frozen(kw_only=True)
class Sizes:
    """Sizes in words, and tokens of an answer. ``prefix_words`` come on top of ``prompt_words``."""

    max_tokens: Annotated[int, Setting("Tokens of an answer.", panel=LOAD, min=1, max=100_000)] = 64
    prompt_words: Annotated[
        int, Setting("Words of a prompt.", panel=LOAD, min=1, max=MAX_WORDS)
    ] = 64
    prefix_words: Annotated[
        int,
        Setting(
            "Words that all prompts of the workload prefix begin with.",
            panel=LOAD,
            min=1,
            max=MAX_WORDS,
        ),
    ] = 512
    long_words: Annotated[
        int,
        Setting(
            "Words of the long prompts of the workload mixed.", panel=LOAD, min=1, max=MAX_WORDS
        ),
    ] = 512


@attrs.frozen
class Ask:
    """One request to be made; ``kind`` names its sort in a workload that has several."""

    text: str
    max_tokens: int
    kind: str


def asks(
    workload: Workload, sizes: Sizes, *, seed: int, target: int, occasion: int, count: int
) -> Iterator[Ask]:
    """The requests of one run, in the order in which they are sent.

    Args:
      target, occasion: those of the run. On one occasion the targets get texts of the same
        lengths, and different words: they may be two ways to one fleet, which would know a text.
    """
    random = Random(f"{seed}/{target}/{occasion}")  # noqa: S311  # no secret
    match workload:
        case Workload.plain:
            for _ in range(count):
                yield Ask(text_of(sizes.prompt_words, random), sizes.max_tokens, "plain")
        case Workload.prefix:
            shared = text_of(sizes.prefix_words, Random(f"{seed}/{target}"))  # noqa: S311
            for _ in range(count):
                text = f"{shared}\n\n{text_of(sizes.prompt_words, random)}"
                yield Ask(text, sizes.max_tokens, "prefix")
        case Workload.mixed:
            # which are long depends on nothing that differs between targets
            order = Random(f"{seed}/{occasion}")  # noqa: S311
            for start in range(0, count, ONE_LONG_IN):
                long = order.randrange(ONE_LONG_IN)
                for place in range(min(ONE_LONG_IN, count - start)):
                    is_long = place == long
                    words = sizes.long_words if is_long else sizes.prompt_words
                    kind = "long" if is_long else "short"
                    yield Ask(text_of(words, random), sizes.max_tokens, kind)
