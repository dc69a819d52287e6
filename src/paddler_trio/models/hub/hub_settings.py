"""Read from the environment where the hub is, who we are there, and where files go.

The variables are ``huggingface_hub``'s and have its meaning, so that a machine that is set up for
it needs nothing more: ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_TOKEN_PATH``, ``HF_HOME``,
``HF_HUB_CACHE``, ``HF_HUB_OFFLINE``, ``HF_HUB_DISABLE_IMPLICIT_TOKEN``, ``XDG_CACHE_HOME``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs

from paddler_trio.errors import ConfigurationError
from paddler_trio.net.client.http_client import HttpClient, Timeouts
from paddler_trio.net.tls.client_tls import SYSTEM_TRUST, ClientTls

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
MAX_TOKEN_CHARS: Final = 4096
_TRUE: Final = frozenset({"1", "ON", "YES", "TRUE"})
_TOKEN = re.compile(r"[\x21-\x7e]+")


@attrs.frozen(kw_only=True)
class HubSettings:
    """See the module docstring.

    Args:
      endpoint: of the hub, without a slash at the end.
      cache: the Hugging Face cache folder, ``models--org--name`` and so on below it.
      url_cache: where files of plain URLs go.
      offline: ask no server; only what is cached can be had.
      token_file: read first; None leaves the token to the environment and ``token_path``.
      token_path: where ``hf auth login`` puts a token.
      env_token: of the environment; None if there is none.
      url_mirror: a model store's address for files of URLs; then ``endpoint`` is that store's, too,
        the token opens the store, and no proxy is used.
      store_tls: how that store is verified; None where it is no store.
    """

    endpoint: str = DEFAULT_ENDPOINT
    cache: Path
    url_cache: Path
    offline: bool = False
    token_file: Path | None = None
    token_path: Path | None = None
    env_token: str | None = attrs.field(default=None, repr=False)
    timeouts: Timeouts = attrs.field(factory=Timeouts)
    url_mirror: str | None = None
    store_tls: ClientTls | None = None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, *, token_file: Path | None = None
    ) -> HubSettings:
        """Read the variables; ConfigurationError for an endpoint that is no URL."""
        home = Path(environment.get("HOME") or _home())

        def folder(text: str) -> Path:
            if text == "~" or text.startswith("~/"):
                text = f"{home}{text[1:]}"
            return Path(re.sub(r"\$\{?(\w+)\}?", lambda m: environment.get(m[1], m[0]), text))

        caches = folder(environment.get("XDG_CACHE_HOME") or str(home / ".cache"))
        hf_home = folder(environment.get("HF_HOME") or str(caches / "huggingface"))
        cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
        ours = environment.get("PADDLER_CACHE_DIR")
        endpoint = (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        if re.fullmatch(r"https?://[^/\s?#]+[^\s?#]*", endpoint) is None:
            raise ConfigurationError(f"HF_ENDPOINT is {endpoint!r}, not a URL such as https://host")
        implicit = not _is_true(environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN")
        token_path = folder(environment.get("HF_TOKEN_PATH") or str(hf_home / "token"))
        return cls(
            endpoint=endpoint,
            cache=folder(cache) if cache else hf_home / "hub",
            url_cache=(folder(ours) if ours else caches / "paddler-trio") / "urls",
            offline=_is_true(
                environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE")
            ),
            token_file=token_file,
            token_path=token_path if implicit else None,
            env_token=_clean(token) if implicit else None,
        )

    def through_store(
        self, store: str, key_file: Path | None, tls: ClientTls = SYSTEM_TRUST
    ) -> HubSettings:
        """Return settings of the same cache, filled from a balancer's model store.

        Args:
          store: its address, without a slash at the end.
          key_file: holds the API key for it; None if it asks for none.
          tls: how it is verified, if its address begins with ``https:``.
        """
        return attrs.evolve(
            self,
            endpoint=f"{store}/hf",
            url_mirror=f"{store}/url",
            store_tls=tls,
            offline=False,
            token_file=key_file,
            token_path=None,
            env_token=None,
        )

    def mirrored(self, url: str) -> str | None:
        """Return the address of a URL at the model store; None without one."""
        if self.url_mirror is None:
            return None
        name = base64.urlsafe_b64encode(url.encode(errors="surrogatepass")).decode().rstrip("=")
        return f"{self.url_mirror}/{name}"

    @property
    def pushed_cache(self) -> Path:
        """The folder where pushed models go."""
        return self.url_cache.parent / "pushed"

    @property
    def store(self) -> str | None:
        """The address of the model store that these are for; None if they are for none."""
        return None if self.url_mirror is None else self.url_mirror.removesuffix("/url")

    def token(self) -> str | None:
        """Return the token as it is now, read anew each time. Blocking.

        Errors:
          ConfigurationError: the token file that was asked for holds none, or what is there is no
            token. The message contains none of it.
        """
        if self.token_file is not None:
            token = _read(self.token_file)
            if token is None:
                raise ConfigurationError(f"{self.token_file} cannot be read or holds no token")
            return _checked(token, str(self.token_file))
        if self.env_token is not None:
            return _checked(self.env_token, "HF_TOKEN")
        token = None if self.token_path is None else _read(self.token_path)
        return None if token is None else _checked(token, str(self.token_path))

    def token_fingerprint(self) -> str:
        """Return a text that differs for another token, and of which nothing can be learned.
        Blocking."""
        try:
            token = self.token()
        except ConfigurationError:
            token = None
        return hashlib.sha256(b"" if token is None else token.encode()).hexdigest()


def _home() -> Path:
    """Return the home that the user's database has; a user without an entry has none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def _is_true(value: str | None) -> bool:
    return value is not None and value.upper() in _TRUE


def _clean(token: str | None) -> str | None:
    token = None if token is None else token.replace("\r", "").replace("\n", "").strip()
    return token or None


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return _clean(file.read(MAX_TOKEN_CHARS + 2).decode("utf-8", errors="replace"))
    except OSError:
        return None


def _checked(token: str, place: str) -> str:
    if len(token) > MAX_TOKEN_CHARS or _TOKEN.fullmatch(token) is None:
        raise ConfigurationError(
            f"{place} must hold one token: 1 to {MAX_TOKEN_CHARS} printable characters without "
            "spaces"
        )
    return token


@asynccontextmanager
async def open_client_of(settings: HubSettings) -> AsyncIterator[HttpClient]:
    """Open a client of the server of these settings: a model store is on this network, and verified
    as its balancer is."""
    tls = settings.store_tls
    if tls is None:
        client = HttpClient(settings.timeouts)
    else:
        client = HttpClient(settings.timeouts, is_public=False, make_context=tls.context)
    try:
        yield client
    finally:
        await client.close()
