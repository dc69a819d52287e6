"""The credential that an agent shows to its balancer: ``pta1.ID.SECRET``, where ``ID`` is public.

It is a bearer's secret as an API key is, in the same header, and it stands alone in a file of the
agent that only its user may read.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.joining.join_token import ID, SECRET

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
