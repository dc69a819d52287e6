"""The language of a model is read from a source: all that an agent needs of it.

Reading it is the work of a preparation process, which imports what that takes.
"""

from __future__ import annotations

import attrs

from paddler_trio.wire.paddler.desired_state import AgentDesiredState
from paddler_trio.wire.trio.adapters import Adapter
from paddler_trio.wire.trio.desired_state_extras import Markers


@attrs.frozen(kw_only=True)
class LanguageSource:
    """A source is what a language is read from.

    Args:
      paths: the model file first, then what the engine uses beside it; the fingerprint covers all.
      adapters: what requests choose from, in the order in which the engine has them.
      desired: its parameters and its template override count.
      trusts_messages: control tokens that messages spell become control tokens.
    """

    paths: tuple[str, ...]
    desired: AgentDesiredState
    markers: Markers | None = None
    adapters: tuple[Adapter, ...] = ()
    trusts_messages: bool = False
