"""The texts of a vocabulary as a trie, in arrays: what a grammar is asked about all at once."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import attrs
import numpy as np

from paddler_trio.language.grammars.gbnf_reader import LAST_CHARACTER
from paddler_trio.language.grammars.pushdown_automaton import PushdownAutomaton, Stacks
from paddler_trio.language.grammars.transition_table import DEAD, UNKNOWN


@attrs.frozen(eq=False, repr=False)
class _Level:
    """Nodes of one depth, those of one parent beside each other.

    ``characters``: of each node, an index into the characters of the trie. ``first_child`` and
    ``num_children``: in the next level. ``offset``: the number of the first node among all.
    """

    offset: int
    characters: np.ndarray
    first_child: np.ndarray
    num_children: np.ndarray


@attrs.frozen(eq=False, repr=False)
class TokenTrie:
    """A vocabulary. Most tokens are text; that of some ends with the first bytes of a character.

    ``pieces``: the bytes of each token, empty where nothing may be read from it. ``is_text``: which
    are whole characters. ``cut``: tokens by the first bytes of a character that they end with.
    ``continuing``: tokens that may complete a character. ``code_points``: of the characters.
    """

    pieces: Sequence[bytes]
    is_text: np.ndarray
    cut: dict[bytes, np.ndarray]
    continuing: tuple[int, ...]
    code_points: np.ndarray
    _nodes: np.ndarray
    """The nodes where each token ends, shape (tokens,): 0 is the root, 1 a node that nothing
    reaches."""
    _levels: tuple[_Level, ...]
    _num_nodes: int

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> TokenTrie:
        """Return the trie of a vocabulary: the bytes of each token."""
        pieces = [b"" if piece[:1] == b"\0" else piece for piece in pieces]
        texts: list[tuple[str, int]] = []
        cut: dict[bytes, list[int]] = {}
        nodes = np.ones(len(pieces), np.int64)
        is_text = np.zeros(len(pieces), bool)
        for token, piece in enumerate(pieces):
            text, rest = read_text(piece) or ("", b"")
            is_text[token] = text and not rest
            if text:
                texts.append((text, token))
            elif rest:
                nodes[token] = 0
            if rest:
                cut.setdefault(rest, []).append(token)
        texts.sort()
        tokens = np.array([token for _, token in texts], np.int64)
        lengths = np.array([len(text) for text, _ in texts], np.int64)
        written = np.frombuffer(
            "".join(text for text, _ in texts).encode("utf-32-le"), np.uint32
        ).astype(np.int64)
        code_points, characters = np.unique(written, return_inverse=True)
        starts = np.cumsum(lengths) - lengths
        levels: list[_Level] = []
        at = np.zeros(len(tokens), np.int64)  # the node of each text in the level before
        alive = np.arange(len(tokens))
        num_above, offset = 1, 2
        while len(alive):
            depth = len(levels)
            above, character = at[alive], characters[starts[alive] + depth]
            is_new = np.ones(len(alive), bool)
            is_new[1:] = (above[1:] != above[:-1]) | (character[1:] != character[:-1])
            at[alive] = np.cumsum(is_new) - 1
            children = np.bincount(above[is_new], minlength=num_above)
            first = np.cumsum(children) - children
            ending = lengths[alive] == depth + 1
            nodes[tokens[alive[ending]]] = offset + at[alive[ending]]
            levels.append(_Level(offset, character[is_new].astype(np.int32), first, children))
            num_above = int(is_new.sum())
            offset += num_above
            alive = alive[~ending]
        return cls(
            pieces,
            is_text,
            {start: np.array(found) for start, found in cut.items()},
            tuple(t for t, piece in enumerate(pieces) if piece and 0x80 <= piece[0] < 0xC0),
            code_points,
            nodes,
            tuple(levels),
            offset,
        )

    def classes_in(self, automaton: PushdownAutomaton) -> tuple[np.ndarray, ...]:
        """The class of every node's character, level by level, in an automaton for this
        vocabulary."""
        classes = automaton.classes.of_vocabulary
        return tuple(classes[level.characters] for level in self._levels)

    def rows(
        self, automaton: PushdownAutomaton, start: int, classes: tuple[np.ndarray, ...]
    ) -> np.ndarray:
        """Return the automaton's row after each token, shape (tokens,), from the row ``start`` on.

        Raises:
          TooManyStacksError: there are too many of them.
        """
        found = np.full(self._num_nodes, DEAD, np.int32)
        found[0] = start
        here, rows = np.zeros(1, np.int64), np.array([start], np.int32)
        for level, of_level in zip(self._levels, classes, strict=True):
            counts = level.num_children[here]
            firsts = np.cumsum(counts) - counts
            here = np.repeat(level.first_child[here] - firsts, counts) + np.arange(counts.sum())
            before, character = np.repeat(rows, counts), of_level[here]
            rows = automaton.table.after(before, character)
            unknown = np.flatnonzero(rows == UNKNOWN)
            if len(unknown):
                width = automaton.classes.count
                pairs = np.unique(before[unknown].astype(np.int64) * width + character[unknown])
                for pair in pairs.tolist():
                    automaton.step(*divmod(pair, width))
                rows = automaton.table.after(before, character)
            alive = np.flatnonzero(rows)
            here, rows = here[alive], rows[alive]
            if not len(here):
                break
            found[level.offset + here] = rows
        rows_of_tokens: np.ndarray = found[self._nodes]
        return rows_of_tokens


def read_text(piece: bytes) -> tuple[str, bytes] | None:
    """Return the characters of these bytes and the beginning of one more; None if they are no
    text."""
    try:
        text, cut = piece.decode(), b""
    except UnicodeDecodeError:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text, cut = decoder.decode(piece), decoder.getstate()[0]
        except UnicodeDecodeError:
            return None
    return None if "\0" in text else (text, cut)


def may_complete(automaton: PushdownAutomaton, stacks: Stacks, cut: bytes) -> bool:
    """Return whether a character that begins with these bytes may come next."""
    return automaton.may_begin(stacks, *_beginning_with(cut))


def _beginning_with(cut: bytes) -> tuple[int, int]:
    """Return the least and the greatest code point whose UTF-8 begins with these bytes."""
    size = 2 if cut[0] < 0xE0 else 3 if cut[0] < 0xF0 else 4
    bits = cut[0] & (0xFF >> (size + 1))
    for byte in cut[1:]:
        bits = bits << 6 | byte & 0x3F
    missing = 6 * (size - len(cut))
    least = (0x80, 0x800, 0x10000)[size - 2]
    return max(bits << missing, least), min((bits + 1 << missing) - 1, LAST_CHARACTER)
