"""Ids under which agents register: a new one for each start."""

from __future__ import annotations

import secrets
from typing import Final

ID_BYTES: Final = 11
"""Enough that no two are ever the same; no id is a secret."""


def new_agent_id() -> str:
    """22 hexadecimal digits: no option of a command line begins so, and no secret looks like it."""
    return secrets.token_hex(ID_BYTES)
