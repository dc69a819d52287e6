"""For HTTP clients of tests, which speak none: reading all root certificates costs each 16 ms."""

from __future__ import annotations

import ssl

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""It trusts no certificate."""
