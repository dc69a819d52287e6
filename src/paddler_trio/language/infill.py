"""The prompt of a gap between two texts: fill in the middle, as llama.cpp's server lays it out.

    [REPOSITORY name] [SEPARATOR file text]... [SEPARATOR file] PREFIX text SUFFIX text MIDDLE begun

What is in brackets is there only with other texts. The names in capitals are tokens of the model's
vocabulary; no text becomes one.

Unlike a conversation, such a prompt is cut and not refused if it is too long: what is near the gap
counts most. A quarter of the slot is left to the answer. As in llama.cpp's server, prefix and
suffix share one batch three to one, and the other texts get what is left of the slot. What they get
does not depend on the length of the prefix: it grows with every keystroke, and what stands before
it would have to be computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from paddler_trio.language.refusal import Refusal, bad_request
from paddler_trio.language.vocabulary import InfillTokens, TokenizationError, Vocabulary
from paddler_trio.wire.trio.work import InfillPrompt, OtherText

ANSWER_SHARE = 4
"""One in so many cells of a slot is the answer's."""
SUFFIX_SHARE = 4
"""One in so many tokens around the gap is the suffix's, if the prefix has use for the others."""
MIDDLE_SHARE = 2
NUM_MARKERS = 3
REPOSITORY = "repository\n"
FILE = "file\n"
SNIPPET = "\n\n--- snippet ---\n\n"
"""What llama.cpp's server puts between texts for a model that knows no files."""


@attrs.frozen
class InfillRoom:
    """Tokens that a prompt may have in all, and those of its gap and what is around it."""

    whole: int
    window: int

    @classmethod
    def of(cls, *, slot_cells: int, n_batch: int) -> InfillRoom:
        whole = slot_cells - max(1, slot_cells // ANSWER_SHARE)
        return cls(whole, min(n_batch, whole))


@attrs.frozen
class Gap:
    """The tokens of what is around it, and of what its middle begins with."""

    prefix: Sequence[int]
    suffix: Sequence[int]
    middle: Sequence[int]

    def cut(self, room: int) -> Gap:
        """The nearest ones, ``room`` together."""
        middle = _end(self.middle, room // MIDDLE_SHARE)
        room -= len(middle)
        num_suffix = min(len(self.suffix), room // SUFFIX_SHARE)
        prefix = _end(self.prefix, room - num_suffix)
        return Gap(prefix, self.suffix[: room - len(prefix)], middle)

    def marked(self, tokens: InfillTokens) -> list[int]:
        markers = tokens.prefix, tokens.suffix, tokens.middle
        before, behind, between = (marker for marker in markers if marker is not None)
        return [before, *self.prefix, behind, *self.suffix, between, *self.middle]


@attrs.frozen
class Others:
    """The tokens of other texts.

    ``texts`` are a heading and a text each; ``before`` and ``after`` stand around all of them.
    """

    before: Sequence[int]
    texts: Sequence[tuple[Sequence[int], Sequence[int]]]
    after: Sequence[int]

    def cut(self, room: int) -> list[int]:
        """The last ones that fit; of one that does not fit whole, its end."""
        room -= len(self.before) + len(self.after)
        kept: list[Sequence[int]] = []
        for heading, text in reversed(self.texts):
            end = _end(text, room - len(heading))
            if not end:
                break
            kept += (end, heading)
            room -= len(heading) + len(end)
        if not kept:
            return []
        parts = (self.before, *reversed(kept), self.after)
        return [token for part in parts for token in part]


def infill_tokens_of(
    prompt: InfillPrompt, vocabulary: Vocabulary, *, slot_cells: int, n_batch: int
) -> list[int]:
    """Return what the engine is given; raises Refusal."""
    markers = vocabulary.infill_tokens
    if markers.missing:
        raise Refusal("InfillNotSupported", _missing(markers.missing))
    num_bos = int(vocabulary.adds_bos and vocabulary.bos_token is not None)
    room = InfillRoom.of(slot_cells=slot_cells, n_batch=n_batch)
    num_beside = NUM_MARKERS + num_bos
    if room.window < num_beside:
        raise bad_request(
            "prompt",
            f"an infill has at least {num_beside} tokens, but one slot of this agent holds "
            f"{slot_cells} and one batch {n_batch}; raise context_size and n_batch, or use fewer "
            "slots",
        )
    if markers.separator is None:
        prompt = attrs.evolve(prompt, others=tuple(map(_nameless, prompt.others)))
    prompt = near(prompt, room.whole * vocabulary.longest_token_chars)
    try:
        gap = Gap(*map(vocabulary.tokenize_text, (prompt.prefix, prompt.suffix, prompt.middle)))
        others = _others(prompt, vocabulary) if room.whole > room.window else None
    except TokenizationError as error:
        raise bad_request("prompt", str(error)) from error
    tokens = gap.cut(room.window - num_beside).marked(markers)
    if others is not None:
        tokens = others.cut(room.whole - room.window) + tokens
    return vocabulary.with_bos(tokens)


def near(prompt: InfillPrompt, most_chars: int) -> InfillPrompt:
    """Without what would be cut anyway, however texts become tokens: it need not be read. All of it
    if ``most_chars``, which all kept tokens together stand for at most, is not known (0)."""
    if not most_chars:
        return prompt
    others: list[OtherText] = []
    num_chars = most_chars
    for other in reversed([each for each in prompt.others if each.text]):
        num_chars -= len(other.filename)
        if num_chars <= 0:
            break
        others.insert(0, attrs.evolve(other, text=other.text[-num_chars:]))
        num_chars -= len(other.text)
    return InfillPrompt(
        prefix=prompt.prefix[-most_chars:],
        suffix=prompt.suffix[:most_chars],
        middle=prompt.middle[-most_chars:],
        others=tuple(others),
    )


def _nameless(other: OtherText) -> OtherText:
    """Return the text for a model that is told no names."""
    return attrs.evolve(other, filename="")


def _others(prompt: InfillPrompt, vocabulary: Vocabulary) -> Others:
    read, markers = vocabulary.tokenize_text, vocabulary.infill_tokens

    def heading(name: str) -> list[int]:
        return read(SNIPPET) if markers.separator is None else [markers.separator, *read(name)]

    repository = markers.repository
    return Others(
        before=() if repository is None else (repository, *read(REPOSITORY)),
        texts=[
            (heading(f"{each.filename}\n"), read(each.text)) for each in prompt.others if each.text
        ],
        after=() if markers.separator is None else heading(FILE),
    )


def _missing(names: Sequence[str]) -> str:
    named = ", ".join(f"{name} token" for name in names)
    return (
        f"Infill is not supported by this model: its vocabulary has no {named}; serve a model that "
        "was trained to fill in the middle"
    )


def _end(tokens: Sequence[int], most: int) -> Sequence[int]:
    return tokens[len(tokens) - max(0, min(most, len(tokens))) :]
