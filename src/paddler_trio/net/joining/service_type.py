"""The service that a balancer announces on the local network, in the words of DNS-SD.

    NAME._paddler-trio._tcp.local.   SRV  host.local. PORT     TXT  v=1 name=NAME

``PORT`` is that of the management service, which has TLS. Anybody on the network may announce
anything: what counts is the PIN, which is bound to the certificate.
"""

from __future__ import annotations

import re
import socket
from typing import Final

SERVICE_TYPE: Final = "_paddler-trio._tcp.local."
VERSION: Final = "1"
MAX_NAME_CHARS: Final = 40
MISSING: Final = (
    "needs the library zeroconf, which is not installed: pip install 'paddler-trio[discovery]'"
)


def balancer_name(port: int) -> str:
    """Return what a balancer of this machine is called: the machine's name, and the port, which
    tells two of one machine apart."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0]).strip("-")
    return f"{host[:MAX_NAME_CHARS] or 'balancer'}:{port}"
