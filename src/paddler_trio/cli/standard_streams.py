"""Standard input, output and error of a process that was started without some of them.

The next socket or file that is opened would get the free number, and whatever is printed or logged
would go into it: into the answer of a client, if it comes to that.
"""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Open what is missing: a missing input has ended, what is written to a missing output fails,
    and errors that nobody can see are dropped. To be called before anything else is opened."""
    for descriptor, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)  # as the lowest number that is free
            os.set_inheritable(opened, True)
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
