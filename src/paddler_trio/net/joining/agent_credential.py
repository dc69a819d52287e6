"""The credential that an agent shows to its balancer: ``pta1.ID.SECRET``, where ``ID`` is public.

It is a bearer's secret as an API key is, in the same header, and it stands alone in a file of the
agent that only its user may read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import ID, SECRET
from paddler_trio.system.durable import replace_whole, sweep

PREFIX: Final = "pta1"
_CREDENTIAL: Final = re.compile(rf"{PREFIX}\.({ID.pattern})\.({SECRET.pattern})", re.ASCII)


@attrs.frozen
class AgentCredential:
    """See the module docstring."""

    id: str
    secret: str = attrs.field(repr=False)

    def render(self) -> str:
        """Return the text that is shown and stored."""
        return f"{PREFIX}.{self.id}.{self.secret}"

    @classmethod
    def parse(cls, text: str) -> AgentCredential | None:
        """None if it is none."""
        match = _CREDENTIAL.fullmatch(text)
        return None if match is None else cls(match[1], match[2])


def looks_like_one(text: str) -> bool:
    """Return whether the text is meant to be a credential; it need not be well-formed."""
    return text.startswith(f"{PREFIX}.")


AGENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def check_agent_name(name: str) -> str:
    """``name`` itself if an agent may join under it, else ConfigurationError."""
    if AGENT_NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:80]!r} cannot name an agent: write 1 to 63 letters, digits or . _ -, the "
            "first a letter or a digit"
        )
    return name


def read_private(path: Path, *, limit_bytes: int) -> bytes | None:
    """Return the file's content, or None if there is no file; raise ConfigurationError if it cannot
    be read or is too long.
    """
    sweep(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(limit_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > limit_bytes:
        raise ConfigurationError(f"{path} has more than {limit_bytes} bytes")
    return content


def replace_private(path: Path, content: bytes) -> None:
    """Replace it as :func:`replace_whole` does; ConfigurationError, and nothing has changed."""
    try:
        replace_whole(path, content)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


@attrs.frozen(eq=False)
class AgentIdentity:
    """The agent of one connection.

    Args:
      labels: of the token that it joined with.
      rotate: lets the secret of one digest replace that of another; False if it cannot.
    """

    name: str
    labels: Mapping[str, str]
    rotate: Callable[[bytes, bytes], Awaitable[bool]] = attrs.field(repr=False)

    def name_problem(self, name: str | None, deployment: str) -> str | None:
        """Why an instance of ``deployment`` may not register under this name; None if it may."""
        if name in (None, self.name, f"{self.name}.{deployment}"):
            return None
        return (
            f"this agent joined as {self.name!r} and registers as {(name or '')[:80]!r}: start it "
            "without --name, or let it join again under the other name"
        )

    def may_meet(self, where: Iterable[str]) -> bool:
        """Return whether this agent may meet the conditions of a deployment, whatever it says of
        itself: none of them contradicts its name or the labels of its token."""
        known = {**self.labels, "agent": self.name}
        terms = (term.partition("=") for term in where)
        return all(known.get(key, value) == value for key, _, value in terms)

    def labels_with(self, claimed: Mapping[str, str]) -> Mapping[str, str]:
        """The agent's own labels, and over them those of its token."""
        return {**claimed, **self.labels}
