"""A daemon with this collects no garbage, but tells at each SIGUSR1 what there is.

A line of JSON is added to a file of its own in ``GARBAGE_PROBE_FOLDER``: how many connections live,
and of the garbage how many connections, exceptions and bytes of text.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from pathlib import Path


def _tell(number: int, frame: object) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    garbage = list(gc.garbage)
    gc.garbage.clear()
    texts = {id(text): text for each in garbage for text in gc.get_referents(each)}
    told = {
        "live": sum(_is_connection(each) for each in gc.get_objects()) - _connections(garbage),
        "connections": _connections(garbage),
        "exceptions": [repr(each) for each in garbage if isinstance(each, BaseException)],
        "text_bytes": sum(
            len(text) for text in texts.values() if isinstance(text, bytes | bytearray | str)
        ),
    }
    del garbage, texts
    gc.collect()
    with (Path(os.environ["GARBAGE_PROBE_FOLDER"]) / str(os.getpid())).open("a") as file:
        file.write(json.dumps(told) + "\n")


def _connections(objects: list[object]) -> int:
    return sum(_is_connection(each) for each in objects)


def _is_connection(each: object) -> bool:
    return type(each).__name__ == "HttpConnection"


def install() -> None:
    gc.disable()
    signal.signal(signal.SIGUSR1, _tell)
