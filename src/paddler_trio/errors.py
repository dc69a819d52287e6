"""The exception tree: whose fault it was decides the class, never where it was noticed.

Expected outcomes (a full buffer, a lost agent, a stopped request) are values, not exceptions;
what is raised here is a broken promise, and every message says which field, which value and
which limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_MESSAGE_CHARS: Final = 600
_LEFT_OUT: Final = " ... "


class PaddlerError(Exception):
    """Root of everything this package raises on purpose."""


class ConfigurationError(PaddlerError):
    """The operator asked for something that cannot be: a bad address, a port in use, a bad file."""


class WireError(PaddlerError):
    """A message from outside does not have the shape it promised; the text carries the path."""


class StateDatabaseError(PaddlerError):
    """The state database cannot be read or written; the file is left as it was found."""


class HandoverError(PaddlerError):
    """One balancer could not take over from another; the one that ran goes on."""


class LinkError(PaddlerError):
    """The other end of an agent link broke its protocol, or cannot be reached."""


class EngineError(PaddlerError):
    """The engine process failed; ``permanent`` ones fail again however often they are tried.

    ``kind``, for counting: ``crash``, ``unresponsive`` (it was killed for that), ``killed`` (by
    somebody else) or ``load_failed``.
    """

    def __init__(self, message: str, *, permanent: bool = False, kind: str = "crash") -> None:
        super().__init__(message)
        self.permanent = permanent
        self.kind = kind


class MemoryUnknownError(PaddlerError):
    """What memory a model takes cannot be computed; the text is the reason.

    ``kind`` sorts the reasons. The file: ``missing``, ``not_gguf`` (no GGUF file, or a malformed
    one), ``truncated`` (shorter than its tensors), ``header_too_large``,
    ``unknown_architecture``, ``model_refused``. Its source: ``unreachable`` (or refused, or it
    changed meanwhile). The parameters: ``context_refused``. The machine: ``unsupported`` (this
    build of llama.cpp cannot count), ``crashed``, ``too_slow``, ``system`` (no room for headers, no
    further process).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ModelFileError(PaddlerError):
    """A model file is missing or is not a model llama.cpp can read."""


class ChatTemplateError(PaddlerError):
    """A chat template does not compile, or does not render these messages; ``line`` of the template
    is where, from 1, if that is known."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class ChildGaveUpError(PaddlerError):
    """A supervised child crashed more often than its restart budget forgives."""


class PreparationError(PaddlerError):
    """The processes that prepare requests ended by themselves; they are started again."""


class ModelStoreError(PaddlerError):
    """The model store's process ended by itself, or cannot work; it is started again."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """``error`` itself, or every exception inside it when it is a group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def one_line(error: BaseException) -> str:
    """Every exception in ``error`` with its type, on one line."""
    return "; ".join(f"{type(leaf).__name__}: {leaf}".replace("\n", " ") for leaf in leaves(error))


def shortened(message: str) -> str:
    """A message that quotes what a client wrote, at most ``MAX_MESSAGE_CHARS``: of a longer one the
    middle is left out, for the place is named at its beginning and the reason at its end."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    kept = (MAX_MESSAGE_CHARS - len(_LEFT_OUT)) // 2
    return f"{message[:kept]}{_LEFT_OUT}{message[-kept:]}"


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of ``error`` and of all that led to it, where it is answered for good.

    A traceback keeps the locals of every frame that it passed. One of these nearly always holds the
    exception again, and then a request's body and connection are garbage in a cycle: there until
    the next full collection, which daemons make rare.
    """
    rest: list[BaseException | None] = [error]
    done: set[int] = set()
    while rest:
        seen = rest.pop()
        if seen is None or id(seen) in done:
            continue
        done.add(id(seen))
        seen.__traceback__ = None
        rest += [seen.__cause__, seen.__context__]
        if isinstance(seen, BaseExceptionGroup):
            rest += seen.exceptions
