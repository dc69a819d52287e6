"""The messages about upstream servers: what an agent in front of one offers, and its tunnels.

An agent started with ``--upstream`` loads no model: it stands beside a server that answers HTTP
itself, such as ``llama-server``. It announces that before its registration by :class:`Upstream`,
and again whenever something of it changes. Requests do not travel over the link: for each one that
is under way there is a *tunnel*, a connection of its own that the agent dials when the balancer
asks for it by :class:`OpenTunnel`; what is sent through it is in ``tunnel_frames.py``.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from paddler_trio.wire.scalars import Uint32
from paddler_trio.wire.shape import ShapeError

DEFAULT_UPSTREAM: Final = "upstream"
"""The deployment of agents that name none."""
MAX_MODELS: Final = 64
MAX_MODEL_CHARS: Final = 512
MAX_DETAIL_CHARS: Final = 512
TUNNEL_PATH: Final = "/api/v2/tunnel/"
"""The path on the management port; the secret of the tunnel follows."""
TUNNEL_PROTOCOL: Final = "paddler-trio-tunnel.1"
"""The protocol that an agent which dials asks to upgrade to."""
CARRIES_FIELD: Final = "X-Paddler-Tunnel-Carries"
"""The field of the request of an agent that dials which says what else than HTTP the tunnel may
carry."""
CARRIES_WEBSOCKETS: Final = "websocket"
_SECRET: Final = re.compile(r"[\w-]{16,64}", re.ASCII)


@attrs.frozen(kw_only=True)
class Upstream:
    """The server that an agent stands in front of.

    ``phase``: ``ready``, ``loading``, ``sleeping`` (it loads its model with the next request),
    ``unauthorised``, ``failing`` or ``unreachable``; ``detail`` is the reason in words.
    ``busy_elsewhere``: slots that others than this balancer use. ``models``: the names under which
    it serves what it serves. ``context_tokens`` is the space of one slot. ``build`` is the server's
    own word for what it is. ``address`` is what people know it by, ``host:port``; nothing is sent
    there. ``slots_endpoint``: whether it answers ``/slots``; None if that is not known.
    """

    phase: str
    detail: str | None = None
    models: tuple[str, ...] = ()
    context_tokens: Uint32 | None = None
    busy_elsewhere: Uint32 = 0
    build: str | None = None
    address: str | None = None
    slots_endpoint: bool | None = None

    def __attrs_post_init__(self) -> None:
        if len(self.models) > MAX_MODELS:
            raise ShapeError(f"{len(self.models)} models, the limit is {MAX_MODELS}", "models")
        texts = {
            "phase": self.phase,
            "detail": self.detail,
            "build": self.build,
            "address": self.address,
        }
        for name, text in texts.items():
            if text is not None and len(text) > MAX_DETAIL_CHARS:
                raise ShapeError(f"{len(text)} characters, the limit is {MAX_DETAIL_CHARS}", name)
        for place, model in enumerate(self.models):
            if not 0 < len(model) <= MAX_MODEL_CHARS:
                raise ShapeError(
                    f"{len(model)} characters, must be 1 to {MAX_MODEL_CHARS}", place, "models"
                )


@attrs.frozen
class OpenTunnel:
    """Dial another connection to the balancer and ask for the tunnel of this ``secret``."""

    secret: str

    def __attrs_post_init__(self) -> None:
        if _SECRET.fullmatch(self.secret) is None:
            raise ShapeError("a tunnel's secret has 16 to 64 letters and digits", "secret")


_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@attrs.frozen
class Rotate:
    """A new secret for the credential that this link was opened with; ``sha256`` is its hash. It
    takes the place of the one of the hash ``replaces``, which the agent has stored, with its first
    use."""

    sha256: str
    replaces: str

    def __attrs_post_init__(self) -> None:
        _check_sha256(self.sha256, "sha256")
        _check_sha256(self.replaces, "replaces")


@attrs.frozen
class Rotated:
    """The balancer has stored this hash: the secret may be used."""

    sha256: str

    def __attrs_post_init__(self) -> None:
        _check_sha256(self.sha256, "sha256")


def _check_sha256(text: str, place: str) -> None:
    if _SHA256.fullmatch(text) is None:
        raise ShapeError("a SHA-256 has 64 hexadecimal digits", place)
