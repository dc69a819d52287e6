"""Options in which ``aws:metadata:ITEM`` stands for what the machine says of itself."""

from __future__ import annotations

import os
from functools import partial

from paddler_trio.agent.servers.metadata_items import items_in


def told_address(text: str) -> str:
    """An address with the hosts that the machine says; as it is if it asks for none.

    It blocks while the machine is asked, for seconds where nobody answers. ConfigurationError.
    """
    return _told(text, is_address=True)


def told_name(text: str) -> str:
    """The same of a name, which may be ``aws:metadata:instance-id`` as well."""
    return _told(text, is_address=False)


def _told(text: str, *, is_address: bool) -> str:
    if not items_in(text):
        return text
    # daemons have both; --help answers without
    import trio

    from paddler_trio.agent.servers.instance_metadata import resolved_text

    return trio.run(partial(resolved_text, text, os.environ, is_address=is_address))
