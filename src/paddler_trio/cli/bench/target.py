"""A server under test: how to reach it, and what to ask of it."""

from __future__ import annotations

import json
import ssl
from typing import Protocol

import attrs
import trio

from paddler_trio.cli.bench.target_address import BaseUrl
from paddler_trio.cli.bench.workloads import Ask
from paddler_trio.errors import PaddlerError


class TargetUnreachableError(PaddlerError):
    """No conversation with a target, or it refused; the text names it and the cause."""


class Dial(Protocol):
    """Opens a plain connection to a target."""

    async def __call__(self) -> trio.abc.Stream: ...


@attrs.frozen(kw_only=True)
class Target:
    """See the module docstring.

    Args:
      label: what it is called in tables.
      model: the name in requests.
      key: the API key to show; None for none. It is in no text that is shown.
      tls: what to verify the server with; None for a plain connection.
      ignores_end: ask for answers of full length (``ignore_eos``), which llama.cpp, vLLM and this
        package know.
    """

    label: str
    url: BaseUrl
    dial: Dial
    model: str = ""
    key: str | None = attrs.field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    ignores_end: bool = True

    async def connect(self) -> trio.abc.Stream:
        """Errors: OSError, ssl.SSLError, trio.BrokenResourceError."""
        stream = await self.dial()
        if self.tls is None:
            return stream
        try:
            encrypted = trio.SSLStream(
                stream, self.tls, server_hostname=self.url.host, https_compatible=True
            )
            await encrypted.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return encrypted

    def headers(self, num_bytes: int) -> list[tuple[str, str]]:
        """Return the headers of a request with a body of so many bytes."""
        headers = [("Host", self.url.authority), ("User-Agent", "paddler-trio-bench")]
        if self.key is not None:
            headers.append(("Authorization", f"Bearer {self.key}"))
        if num_bytes:
            headers.append(("Content-Type", "application/json"))
            headers.append(("Content-Length", str(num_bytes)))
        return headers

    def body_of(self, ask: Ask) -> bytes:
        """A chat completion that is streamed, sampled greedily, and tells its usage."""
        body: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": ask.text}],
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_end:
            body["ignore_eos"] = True
        return json.dumps(body).encode()
