"""Names of strangers, in which everything can be seen: they reach terminals, logs and metrics."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""Return the text with every character that is not printable as its escape.

    Control characters (ESC and those of C1 too), separators of lines, marks that turn the direction
    of writing and halves of surrogate pairs become ``\x1b``, ``\u2028``, ``\u202e``, ``\ud800``.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
